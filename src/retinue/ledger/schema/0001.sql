-- Times are microseconds since 1970 in UTC. `ask` holds the whole request as JSON; its other columns are only for searching.

CREATE TABLE runs (
    id TEXT PRIMARY KEY NOT NULL,
    ask_key TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL,
    slug TEXT NOT NULL,
    key TEXT NOT NULL,
    agent TEXT NOT NULL,
    status TEXT NOT NULL,
    waiting_for TEXT,
    reason TEXT,
    requester TEXT NOT NULL,
    parent_run TEXT,
    root TEXT NOT NULL,
    depth INTEGER NOT NULL,
    door TEXT NOT NULL,
    source TEXT NOT NULL,
    label TEXT NOT NULL,
    task TEXT,
    model TEXT NOT NULL,
    thinking TEXT NOT NULL,
    text TEXT NOT NULL,
    error TEXT NOT NULL,
    turns INTEGER NOT NULL,
    tool_calls INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    owner TEXT NOT NULL,
    scope_hash TEXT NOT NULL,
    workspace TEXT NOT NULL,
    path TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER,
    deadline_at INTEGER,
    ask TEXT NOT NULL
) STRICT;

CREATE INDEX runs_by_creation ON runs (created_at, id);
CREATE INDEX runs_by_session ON runs (session_id, created_at, id);
CREATE INDEX runs_by_status ON runs (status, created_at, id);
CREATE INDEX runs_by_root ON runs (root, created_at, id);
CREATE INDEX runs_by_parent ON runs (parent_run, created_at, id);

CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    session TEXT NOT NULL,
    run TEXT NOT NULL,
    parent_run TEXT NOT NULL,
    agent TEXT NOT NULL,
    data TEXT NOT NULL
) STRICT;

CREATE INDEX events_by_session ON events (session, seq);

-- Public view for other programs: one row per run, times in milliseconds.
CREATE VIEW subagent_runs AS
SELECT
    id,
    key AS session_key,
    requester AS requester_key,
    coalesce(task, '') AS task,
    nullif(label, '') AS label,
    coalesce(nullif(model, ''), ask ->> '$.model') AS model,
    CASE status
        WHEN 'done' THEN 'completed'
        WHEN 'failed' THEN 'failed'
        WHEN 'cancelled' THEN 'failed'
        WHEN 'lost' THEN 'failed'
        WHEN 'timed_out' THEN 'timeout'
        ELSE 'running'
    END AS status,
    CASE
        WHEN status = 'done' THEN text
        WHEN status IN ('failed', 'cancelled', 'lost', 'timed_out') THEN nullif(text, '')
    END AS result,
    CASE
        WHEN status IN ('failed', 'cancelled', 'lost', 'timed_out')
        THEN coalesce(nullif(error, ''), reason, status)
    END AS error,
    coalesce(started_at, created_at) / 1000 AS started_at,
    ended_at / 1000 AS finished_at,
    max(0, (ended_at - started_at + 500) / 1000) AS duration_ms
FROM runs;
