-- How many of a run's calls did something. Of those before this nobody knows, so all of them count.
ALTER TABLE runs ADD COLUMN made INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET made = tool_calls;
