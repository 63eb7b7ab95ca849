-- What remains of a run that was pruned by age or size, or purged with its session: nothing that a person or a model wrote.
-- key_hash is the SHA-256 of the request's key, so that a repeated request finds the run instead of creating another.
CREATE TABLE pruned_runs (
    id TEXT PRIMARY KEY NOT NULL,
    key_hash BLOB NOT NULL UNIQUE,
    session_id TEXT NOT NULL,
    agent TEXT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT,
    result_hash TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Sums of pruned runs by the day (UTC) on which they ended, by agent and model.
CREATE TABLE daily_usage (
    day TEXT NOT NULL,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    runs INTEGER NOT NULL,
    turns INTEGER NOT NULL,
    tool_calls INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, agent, model)
) STRICT, WITHOUT ROWID;

-- events_pruned_through: number of the newest event that was pruned.
CREATE TABLE retention (
    name TEXT PRIMARY KEY NOT NULL,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
