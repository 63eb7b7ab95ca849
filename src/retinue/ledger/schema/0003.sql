-- awaited: an open tool call waits for this run. aside: the run waits without an open call. wake_at: when a waiting run
-- continues in any case.
ALTER TABLE runs ADD COLUMN awaited INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN aside INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN wake_at INTEGER;
ALTER TABLE runs ADD COLUMN exit TEXT NOT NULL DEFAULT '';

DROP INDEX runs_by_parent;
CREATE INDEX runs_by_parent ON runs (parent_run, awaited, status);
CREATE INDEX runs_by_tree ON runs (root, status);
CREATE INDEX runs_by_requester ON runs (requester, status);
CREATE INDEX runs_by_wake ON runs (wake_at) WHERE wake_at IS NOT NULL;

-- Deliveries (outbox): one row for each ended run that an agent requested.
CREATE TABLE deliveries (
    id TEXT PRIMARY KEY,
    run TEXT NOT NULL UNIQUE,
    asker TEXT NOT NULL,
    session TEXT NOT NULL,
    state TEXT NOT NULL,
    answers INTEGER NOT NULL,
    uncleared INTEGER NOT NULL,
    delivery TEXT NOT NULL
) STRICT;

CREATE INDEX deliveries_by_session ON deliveries (session, state, id);
CREATE INDEX deliveries_by_asker ON deliveries (asker, state, id);
CREATE INDEX deliveries_uncleared ON deliveries (id) WHERE uncleared = 1;
