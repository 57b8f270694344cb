-- What became of the cache's servers. A server that takes over has a new replication ID; one that was seen before is no news. What was finished shortly before a server took
-- over may be lacking there, so it is run again: once at once, and once more for what was finished while the old server still had callers.

-- Up Migration

CREATE TABLE cache_lineages (
  replication_id text COLLATE "C" PRIMARY KEY,
  seen_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE cache_reruns (
  rerun_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  due_at timestamptz NOT NULL,
  -- What was finished from here on, and before there. The start moves on as jobs are run again.
  from_at timestamptz NOT NULL,
  until_at timestamptz NOT NULL
);

-- Down Migration

DROP TABLE cache_reruns, cache_lineages;
