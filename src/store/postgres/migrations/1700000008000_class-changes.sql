-- After a failover of the cache the authors that changed class shortly before are looked for among many millions: those that ever changed are few.

-- Up Migration

CREATE INDEX IF NOT EXISTS authors_by_class_change ON authors (class_changed_at) WHERE class_changed_at IS NOT NULL;

-- Down Migration

DROP INDEX authors_by_class_change;
