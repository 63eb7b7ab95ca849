-- Live runs are few and queried often: partial indexes exclude the runs that have ended.
DROP INDEX runs_by_status;
DROP INDEX runs_by_tree;
DROP INDEX runs_by_requester;
DROP INDEX runs_by_parent;
CREATE INDEX runs_by_parent ON runs (parent_run, created_at, id) WHERE parent_run IS NOT NULL;
CREATE INDEX runs_live ON runs (status, requester, root) WHERE ended_at IS NULL;
CREATE INDEX runs_live_of_session ON runs (session_id, status) WHERE ended_at IS NULL;
CREATE INDEX runs_live_of_parent ON runs (parent_run, awaited, status)
    WHERE ended_at IS NULL AND parent_run IS NOT NULL;
