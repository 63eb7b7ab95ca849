-- Drop indexes that no query uses, so that a transaction writes fewer pages.
-- Events are never deleted, so the next number is the maximum plus one, without the table of AUTOINCREMENT.
DROP INDEX events_by_session;
ALTER TABLE events RENAME TO counted_events;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    session TEXT NOT NULL,
    run TEXT NOT NULL,
    parent_run TEXT NOT NULL,
    agent TEXT NOT NULL,
    data TEXT NOT NULL
) STRICT;
INSERT INTO events SELECT seq, at, kind, session, run, parent_run, agent, data FROM counted_events ORDER BY seq;
DROP TABLE counted_events;

-- Most runs are the only run of their tree, and are found by their id.
DROP INDEX runs_by_root;
CREATE INDEX runs_by_root ON runs (root, created_at, id) WHERE root <> id;

-- One covering index of live runs, for sessions and for counts; its last column is always NULL.
-- Both indexes have the order of lists, so that the newest run is found without reading the others.
DROP INDEX runs_live;
DROP INDEX runs_live_of_session;
DROP INDEX runs_live_of_parent;
CREATE INDEX runs_live ON runs (status, session_id, created_at, id, requester, root, ended_at)
    WHERE ended_at IS NULL;
CREATE INDEX runs_live_of_parent ON runs (parent_run, awaited, status, created_at, id)
    WHERE ended_at IS NULL AND parent_run IS NOT NULL;
