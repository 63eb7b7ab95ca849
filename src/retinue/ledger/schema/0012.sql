-- 12
-- time_left: time until the deadline while its clock is stopped; deadline_at is NULL then. recovery: crashes of the run's
-- process and outages of its model's server, as JSON.
ALTER TABLE runs ADD COLUMN time_left INTEGER;
ALTER TABLE runs ADD COLUMN recovery TEXT NOT NULL DEFAULT '';
-- Until now the clock never stopped: waiting runs keep what was left when they began to wait, queued ones start anew.
UPDATE runs SET
    time_left = max(0, deadline_at - coalesce((SELECT max(at) FROM events WHERE events.run = runs.id), started_at)),
    deadline_at = NULL
WHERE status = 'waiting' AND waiting_for <> 'child' AND deadline_at IS NOT NULL;
UPDATE runs SET deadline_at = NULL WHERE status = 'queued';
