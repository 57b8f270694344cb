-- Deleted posts keep their rows: they name what was deleted, for ever. Pages walk this index instead of the primary key, so that an author who
-- deleted 300,000 posts costs their readers 1 ms a page and not 100.

-- Up Migration

CREATE INDEX posts_live ON posts (tenant_id, author_id, post_id) WHERE deleted_at IS NULL;

-- Down Migration

DROP INDEX posts_live;
