-- When a fan-out job was last hinted to the queue: the relay does not hint the same job with every look.

-- Up Migration

ALTER TABLE fanout_jobs ADD COLUMN hinted_at timestamptz;

-- Down Migration

ALTER TABLE fanout_jobs DROP COLUMN hinted_at;
