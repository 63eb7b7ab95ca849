-- Number of input tokens from the provider's cache. Unknown for older runs.
ALTER TABLE runs ADD COLUMN cached_tokens INTEGER NOT NULL DEFAULT 0;
