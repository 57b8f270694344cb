-- Who of a viewer's follows is pulled: asked for every follow of a snapshot and of a load. Few authors are, so the whole index stays in memory; follower counts, which change
-- all the time, are not in it.

-- Up Migration

CREATE INDEX IF NOT EXISTS authors_pulled ON authors (tenant_id, author_id) WHERE fanout_class <> 'push';

-- Down Migration

DROP INDEX authors_pulled;
