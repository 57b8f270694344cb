-- What decides whether a post belongs on followers' timelines stands in the index that newest posts are read from: a rebuild asks it for some posts of each of thousands of authors, each of whose
-- rows lies on a page of its own. Some 15 bytes a post.

-- Up Migration

DROP INDEX posts_live;
CREATE INDEX posts_live ON posts (tenant_id, author_id, post_id) INCLUDE (visibility, moderation) WHERE deleted_at IS NULL;

-- Down Migration

DROP INDEX posts_live;
CREATE INDEX posts_live ON posts (tenant_id, author_id, post_id) WHERE deleted_at IS NULL;
