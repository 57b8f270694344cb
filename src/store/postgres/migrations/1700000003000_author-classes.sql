-- What the change of an author's class needs: where BOTH is heading, how far the backfill on the way down has come, and the figures of the second guard.
--
-- Rounds look for authors that must change every few seconds, among many millions of rows. Their count of followers is rewritten with every fold, and an index on it
-- would be written each time; so the index is on the count's magnitude (four steps to a factor of ten), which changes some twenty times in the life of the largest author.
-- All other updates of a row leave every index alone.

-- Up Migration

ALTER TABLE authors
  -- Where class 'both' is heading; else the class itself.
  ADD COLUMN class_target text NOT NULL DEFAULT 'push' CHECK (class_target IN ('push', 'pull')),
  -- Last follower whose timeline has been given the author's posts on the way down; '' before the first.
  ADD COLUMN backfill_cursor text COLLATE "C" NOT NULL DEFAULT '',
  ADD COLUMN backfill_finished boolean NOT NULL DEFAULT false,
  ADD COLUMN backfill_lease_until timestamptz,
  -- Timelines that the last finished fan-out to followers found resident; null where none was measured.
  ADD COLUMN resident_followers bigint,
  ADD COLUMN follower_magnitude smallint NOT NULL GENERATED ALWAYS AS (floor(4 * log(greatest(follower_count, 1)::float8))::smallint) STORED;
-- Few different keys, which a B-tree stores once: some bytes for each author.
CREATE INDEX authors_by_class ON authors (fanout_class, follower_magnitude);
-- Large authors alone have the figure, and it is written only when it has changed by more than a tenth.
CREATE INDEX authors_by_residents ON authors (resident_followers) WHERE fanout_class = 'push' AND resident_followers IS NOT NULL;

-- Time spent in pushes, in milliseconds, of all runs of the job.
ALTER TABLE fanout_jobs ADD COLUMN pushing_ms double precision NOT NULL DEFAULT 0;
-- Jobs of large authors, newest first: few among all that are done, and no other job is ever written here.
CREATE INDEX fanout_jobs_measured ON fanout_jobs (done_at) WHERE done_at IS NOT NULL AND lane <> 'small';

-- Down Migration

DROP INDEX fanout_jobs_measured;
ALTER TABLE fanout_jobs DROP COLUMN pushing_ms;
DROP INDEX authors_by_class, authors_by_residents;
-- What came before pushes every post and knows no lists: timelines lack what was pulled, so the cache is to be emptied beside it.
UPDATE authors SET fanout_class = 'push' WHERE fanout_class <> 'push';
ALTER TABLE authors DROP COLUMN follower_magnitude, DROP COLUMN resident_followers, DROP COLUMN backfill_lease_until, DROP COLUMN backfill_finished,
  DROP COLUMN backfill_cursor, DROP COLUMN class_target;
