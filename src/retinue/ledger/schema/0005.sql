-- Number of tool calls that had an effect. Unknown for older runs, so all their calls count.
ALTER TABLE runs ADD COLUMN made INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET made = tool_calls;
