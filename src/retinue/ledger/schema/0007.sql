-- How many of the tokens that went in came from a provider's cache. Of those before this nobody knows.
ALTER TABLE runs ADD COLUMN cached_tokens INTEGER NOT NULL DEFAULT 0;
