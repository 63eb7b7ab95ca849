-- Approvals: one row per request for approval, never deleted.
CREATE TABLE approvals (
    id TEXT PRIMARY KEY,
    run TEXT NOT NULL,
    call TEXT NOT NULL,
    state TEXT NOT NULL,
    approval TEXT NOT NULL
) STRICT;

CREATE INDEX approvals_by_run ON approvals (run, id);
CREATE INDEX approvals_by_state ON approvals (state, id);
