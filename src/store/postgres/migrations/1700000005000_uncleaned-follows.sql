-- Ended follows whose entries may still be on a timeline, by the moment of their end: a queue that no crash can lose. A row leaves it when a clean-up that
-- began late enough has marked it, or when the follow begins anew.

-- Up Migration

CREATE INDEX follows_uncleaned ON follows (ended_at) WHERE ended_at IS NOT NULL AND cleaned_at IS NULL;

-- Down Migration

DROP INDEX follows_uncleaned;
