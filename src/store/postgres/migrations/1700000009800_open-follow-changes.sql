-- What is still to be done about a viewer's follows: the reconciler asks for it, timeline by timeline, and would walk every event that is open, which in an outage of the cache are all of them.
-- An event is written here when it is appended and no more: taking it or giving it back touches neither the columns nor the condition.

-- Up Migration

CREATE INDEX IF NOT EXISTS outbox_open_follow_changes ON outbox (tenant_id, (payload->>'followerId')) WHERE done_at IS NULL AND kind = 'follows_changed';

-- Down Migration

DROP INDEX outbox_open_follow_changes;
