-- A step writes as few pages as can be: nothing is kept beside a row that no question needs.
-- Events are never taken away, so the next number is one more than the greatest without a table that counts.
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

-- Most runs are the root of a tree of one, and are found by their id.
DROP INDEX runs_by_root;
CREATE INDEX runs_by_root ON runs (root, created_at, id) WHERE root <> id;

-- One index of what is live, for a session and for the counts, which need nothing else: its last column is never set.
-- Both have the order in which runs are told, so that the newest of many is found without the others.
DROP INDEX runs_live;
DROP INDEX runs_live_of_session;
DROP INDEX runs_live_of_parent;
CREATE INDEX runs_live ON runs (status, session_id, created_at, id, requester, root, ended_at)
    WHERE ended_at IS NULL;
CREATE INDEX runs_live_of_parent ON runs (parent_run, awaited, status, created_at, id)
    WHERE ended_at IS NULL AND parent_run IS NOT NULL;
