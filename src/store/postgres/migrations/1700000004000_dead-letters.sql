-- A fan-out job that fails by its own fault again and again is put aside as a dead letter: dead_at says when, error why. It stays until somebody
-- puts it back. `blamed` counts the attempts, since it last came further, that nothing but the job explains.
-- Hints are claimed lane by lane, so that a backlog of one lane never hides what is due in another.

-- Up Migration

ALTER TABLE fanout_jobs ADD COLUMN blamed integer NOT NULL DEFAULT 0, ADD COLUMN dead_at timestamptz;
DROP INDEX fanout_jobs_open, fanout_jobs_unhinted;
CREATE INDEX fanout_jobs_open ON fanout_jobs (lane, created_at) WHERE done_at IS NULL AND dead_at IS NULL;
CREATE INDEX fanout_jobs_unhinted ON fanout_jobs (lane, hinted_at) WHERE done_at IS NULL AND dead_at IS NULL;
CREATE INDEX fanout_jobs_dead ON fanout_jobs (lane, tenant_id, post_id, generation) WHERE dead_at IS NOT NULL;

-- Down Migration

DROP INDEX fanout_jobs_dead, fanout_jobs_unhinted, fanout_jobs_open;
-- Without dead letters every job that is not done is open, and due.
UPDATE fanout_jobs SET hinted_at = '-infinity' WHERE dead_at IS NOT NULL;
ALTER TABLE fanout_jobs DROP COLUMN dead_at, DROP COLUMN blamed;
CREATE INDEX fanout_jobs_open ON fanout_jobs (lane, created_at) WHERE done_at IS NULL;
CREATE INDEX fanout_jobs_unhinted ON fanout_jobs (hinted_at) WHERE done_at IS NULL;
