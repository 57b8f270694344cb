-- How far the reconciler has come among all viewers: one row, so that workers share one walk and a restart goes on with it.

-- Up Migration

CREATE TABLE reconcile_walk (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  tenant_id text COLLATE "C" NOT NULL DEFAULT '',
  viewer_id text COLLATE "C" NOT NULL DEFAULT ''
);
INSERT INTO reconcile_walk DEFAULT VALUES;

-- Down Migration

DROP TABLE reconcile_walk;
