-- 14
-- report: the summary and the files of a run's end, as JSON.
ALTER TABLE runs ADD COLUMN report TEXT NOT NULL DEFAULT '';
-- The view holds the runs of sub-agents only.
DROP VIEW subagent_runs;
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
FROM runs
WHERE requester <> 'person';
