-- When a fan-out job was last hinted to the queue: the relay does not hint the same job with every look. Before the first hint it is
-- -infinity, so that one range of the index holds all jobs that are due, however long the backlog of those that were hinted already.

-- Up Migration

ALTER TABLE fanout_jobs ADD COLUMN hinted_at timestamptz NOT NULL DEFAULT '-infinity';
CREATE INDEX fanout_jobs_unhinted ON fanout_jobs (hinted_at) WHERE done_at IS NULL;

-- Down Migration

ALTER TABLE fanout_jobs DROP COLUMN hinted_at;
