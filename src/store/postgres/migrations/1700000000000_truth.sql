-- The truth of DESIGN 4: posts, graph, authors; the outbox of the fan-out; events for everybody else.
-- Identifiers compare by their bytes (COLLATE "C"): faster, and the order of lists does not depend on the server's locale.
-- No ordering column is nullable.

-- Up Migration

CREATE TABLE tenants (
  tenant_id text COLLATE "C" PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE api_keys (
  key_hash bytea PRIMARY KEY CHECK (length(key_hash) = 32),
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenants,
  role text NOT NULL CHECK (role IN ('service', 'admin')),
  created_at timestamptz NOT NULL DEFAULT now(),
  revoked_at timestamptz
);

-- A leased number of the ID generators. high_ms: end, by Postgres' clock and exclusive, of the milliseconds promised to a holder.
CREATE TABLE generators (
  generator smallint PRIMARY KEY CHECK (generator BETWEEN 0 AND 119),
  high_ms bigint NOT NULL DEFAULT 0,
  holder uuid
);
INSERT INTO generators (generator) SELECT generate_series(0, 119);

-- Absent author row: active, not protected, no profile, class push.
CREATE TABLE authors (
  tenant_id text COLLATE "C" NOT NULL,
  author_id text COLLATE "C" NOT NULL,
  lifecycle text NOT NULL DEFAULT 'active' CHECK (lifecycle IN ('active', 'suspended', 'erased')),
  protected boolean NOT NULL DEFAULT false,
  display_name text NOT NULL DEFAULT '',
  avatar_address text NOT NULL DEFAULT '',
  bio text NOT NULL DEFAULT '',
  -- 0: no profile was ever stored.
  profile_version bigint NOT NULL DEFAULT 0,
  -- Changed by the aggregator alone, from counter_deltas.
  follower_count bigint NOT NULL DEFAULT 0,
  fanout_class text NOT NULL DEFAULT 'push' CHECK (fanout_class IN ('push', 'both', 'pull')),
  class_epoch bigint NOT NULL DEFAULT 0,
  class_changed_at timestamptz,
  PRIMARY KEY (tenant_id, author_id)
);

CREATE TABLE posts (
  tenant_id text COLLATE "C" NOT NULL,
  author_id text COLLATE "C" NOT NULL,
  post_id bigint NOT NULL CHECK (post_id BETWEEN 1 AND 9007199254740991),
  text text NOT NULL,
  media jsonb NOT NULL DEFAULT '[]',
  reply_to_post_id bigint,
  reply_to_author_id text COLLATE "C",
  repost_of_post_id bigint,
  repost_of_author_id text COLLATE "C",
  plain_repost boolean NOT NULL DEFAULT false,
  visibility text NOT NULL CHECK (visibility IN ('public', 'followers', 'private')),
  moderation text NOT NULL DEFAULT 'clear' CHECK (moderation IN ('clear', 'sensitive', 'hidden')),
  meta_version bigint NOT NULL DEFAULT 1,
  body_version bigint NOT NULL DEFAULT 1,
  edited_at timestamptz,
  deleted_at timestamptz,
  PRIMARY KEY (tenant_id, author_id, post_id),
  CHECK ((reply_to_post_id IS NULL) = (reply_to_author_id IS NULL)),
  CHECK ((repost_of_post_id IS NULL) = (repost_of_author_id IS NULL))
) PARTITION BY HASH (tenant_id, author_id);

DO $$
BEGIN
  FOR part IN 0..15 LOOP
    EXECUTE format('CREATE TABLE posts_%s PARTITION OF posts FOR VALUES WITH (MODULUS 16, REMAINDER %s)', part, part);
  END LOOP;
END $$;

-- Newest posts of many authors inside a window of IDs (rebuild); a lookup of single posts goes by post_stats, which names the partition.
CREATE INDEX posts_by_id ON posts (tenant_id, post_id);

CREATE TABLE self_entries (
  tenant_id text COLLATE "C" NOT NULL,
  viewer_id text COLLATE "C" NOT NULL,
  post_id bigint NOT NULL,
  PRIMARY KEY (tenant_id, viewer_id, post_id)
);

-- One row per post, for ever: makes an ID unique in the tenant whoever the author is, and names the author's partition.
-- Counters are null until the aggregator has folded something: unknown is not zero.
CREATE TABLE post_stats (
  tenant_id text COLLATE "C" NOT NULL,
  post_id bigint NOT NULL,
  author_id text COLLATE "C" NOT NULL,
  reposts bigint,
  replies bigint,
  PRIMARY KEY (tenant_id, post_id)
);

CREATE TABLE follows (
  tenant_id text COLLATE "C" NOT NULL,
  follower_id text COLLATE "C" NOT NULL,
  followee_id text COLLATE "C" NOT NULL,
  version bigint NOT NULL DEFAULT 1,
  started_at timestamptz NOT NULL DEFAULT now(),
  ended_at timestamptz,
  cleaned_at timestamptz,
  PRIMARY KEY (tenant_id, follower_id, followee_id),
  CHECK (follower_id <> followee_id)
);
CREATE INDEX follows_active_by_followee ON follows (tenant_id, followee_id, follower_id) WHERE ended_at IS NULL;
CREATE INDEX follows_active_by_follower ON follows (tenant_id, follower_id, followee_id) WHERE ended_at IS NULL;

CREATE TABLE blocks (
  tenant_id text COLLATE "C" NOT NULL,
  blocker_id text COLLATE "C" NOT NULL,
  blocked_id text COLLATE "C" NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, blocker_id, blocked_id),
  CHECK (blocker_id <> blocked_id)
);

CREATE TABLE mutes (
  tenant_id text COLLATE "C" NOT NULL,
  muter_id text COLLATE "C" NOT NULL,
  muted_id text COLLATE "C" NOT NULL,
  -- Null: no end.
  until timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, muter_id, muted_id),
  CHECK (muter_id <> muted_id)
);

-- The outbox of the fan-out, one row per generation of a post. A queue's job is only a hint that names a row.
CREATE TABLE fanout_jobs (
  tenant_id text COLLATE "C" NOT NULL,
  post_id bigint NOT NULL,
  generation integer NOT NULL DEFAULT 1,
  author_id text COLLATE "C" NOT NULL,
  lane text NOT NULL CHECK (lane IN ('small', 'medium', 'bulk')),
  -- Last follower delivered to, in the order of follower_id; '' before the first.
  follower_cursor text COLLATE "C" NOT NULL DEFAULT '',
  delivered bigint NOT NULL DEFAULT 0,
  skipped bigint NOT NULL DEFAULT 0,
  lease_token uuid,
  lease_until timestamptz,
  attempts integer NOT NULL DEFAULT 0,
  error text,
  -- Postgres' wall clock inside the statement that published: the start of post-to-timeline.
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  done_at timestamptz,
  PRIMARY KEY (tenant_id, post_id, generation)
);
CREATE INDEX fanout_jobs_open ON fanout_jobs (lane, created_at) WHERE done_at IS NULL;
CREATE INDEX fanout_jobs_done ON fanout_jobs (done_at) WHERE done_at IS NOT NULL;

-- Events for everybody else. Claimed row by row with FOR UPDATE SKIP LOCKED, never by "greater than last seen".
CREATE TABLE outbox (
  event_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  kind text NOT NULL,
  payload jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  lease_until timestamptz,
  attempts integer NOT NULL DEFAULT 0,
  done_at timestamptz
);
CREATE INDEX outbox_open ON outbox (event_id) WHERE done_at IS NULL;
CREATE INDEX outbox_done ON outbox (done_at) WHERE done_at IS NOT NULL;

CREATE TABLE publish_requests (
  tenant_id text COLLATE "C" NOT NULL,
  request_id text COLLATE "C" NOT NULL,
  content_hash bytea NOT NULL CHECK (length(content_hash) = 32),
  post_id bigint NOT NULL,
  author_id text COLLATE "C" NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, request_id)
);
CREATE INDEX publish_requests_age ON publish_requests (created_at);

-- Changes of counters, appended by whoever causes them and folded in batches by one aggregator: no hot row.
CREATE TABLE counter_deltas (
  delta_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  counter text NOT NULL CHECK (counter IN ('followers', 'reposts', 'replies')),
  -- An author for followers, a post for the others.
  author_id text COLLATE "C",
  post_id bigint,
  delta integer NOT NULL
);

-- Down Migration

DROP TABLE counter_deltas, publish_requests, outbox, fanout_jobs, mutes, blocks, follows, post_stats, self_entries, posts, authors,
  generators, api_keys, tenants;
