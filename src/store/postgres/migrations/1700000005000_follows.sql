-- Ended follows whose entries may still be on a timeline, by the moment of their end: a queue that no crash can lose. A row leaves it when a clean-up that
-- began late enough has marked it, or when the follow begins anew.
--
-- start_follows: the whole of a follow in one round trip. What one user follows changes one call at a time, under a lock that a block of theirs or of those asked for shares; the statement
-- after the lock has a snapshot of its own, so it sees what the holder before has committed: no follow slips past a block, or past the limit. (As a transaction of
-- five statements it took a caller some five times as long as the last of them alone.) One lock, however many are asked for: a lock for each would fill the server's lock table.

-- Up Migration

CREATE INDEX IF NOT EXISTS follows_uncleaned ON follows (ended_at) WHERE ended_at IS NOT NULL AND cleaned_at IS NULL;

CREATE FUNCTION start_follows(tenant text, follower text, asked text[], follows_max integer)
RETURNS TABLE (followee text, relation_version bigint, outcome text) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended(follower || ' ' || tenant, 0));
  RETURN QUERY
  WITH standing AS MATERIALIZED (
    SELECT a.who, a.place, coalesce(f.version, 0) AS was, f.version IS NOT NULL AND f.ended_at IS NULL AS held,
      EXISTS (SELECT 1 FROM blocks b WHERE b.tenant_id = tenant AND b.blocker_id = follower AND b.blocked_id = a.who)
        OR EXISTS (SELECT 1 FROM blocks b WHERE b.tenant_id = tenant AND b.blocker_id = a.who AND b.blocked_id = follower) AS blocked
    FROM unnest(asked) WITH ORDINALITY AS a (who, place)
    LEFT JOIN follows f ON f.tenant_id = tenant AND f.follower_id = follower AND f.followee_id = a.who
  ),
  starting AS MATERIALIZED (
    SELECT s.who FROM standing s WHERE NOT s.held AND NOT s.blocked ORDER BY s.place
    LIMIT greatest(0, follows_max - (SELECT count(*) FROM (
      SELECT 1 FROM follows f WHERE f.tenant_id = tenant AND f.follower_id = follower AND f.ended_at IS NULL LIMIT follows_max
    ) AS running))
  ),
  changed AS (
    INSERT INTO follows AS f (tenant_id, follower_id, followee_id) SELECT tenant, follower, s.who FROM starting s ORDER BY s.who COLLATE "C"
    ON CONFLICT (tenant_id, follower_id, followee_id)
      DO UPDATE SET version = f.version + 1, started_at = now(), ended_at = NULL, cleaned_at = NULL WHERE f.ended_at IS NOT NULL
    RETURNING f.followee_id AS who, f.version AS became
  ),
  counted AS (
    INSERT INTO counter_deltas (tenant_id, counter, author_id, delta) SELECT tenant, 'followers', c.who, 1 FROM changed c
  ),
  told AS (
    INSERT INTO outbox (tenant_id, kind, payload)
    SELECT tenant, 'follows_changed', jsonb_build_object('followerId', follower,
      'followeeIds', jsonb_agg(c.who ORDER BY c.who), 'versions', jsonb_agg(c.became::text ORDER BY c.who))
    FROM changed c HAVING count(*) > 0
  )
  SELECT s.who, coalesce(c.became, s.was),
    CASE WHEN c.who IS NOT NULL THEN 'started' WHEN s.held THEN 'held' WHEN s.blocked THEN 'blocked' ELSE 'full' END
  FROM standing s LEFT JOIN changed c ON c.who = s.who ORDER BY s.place;
END
$$;

-- Down Migration

DROP FUNCTION start_follows;
DROP INDEX follows_uncleaned;
