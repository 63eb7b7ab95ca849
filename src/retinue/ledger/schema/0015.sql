-- cache_write_tokens: input tokens that the provider stored in its cache. Unknown for older runs.
-- long_prompt: the usage of requests that have the rates for long prompts, as JSON; empty if there is none.
ALTER TABLE runs ADD COLUMN cache_write_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN long_prompt TEXT NOT NULL DEFAULT '';
ALTER TABLE daily_usage ADD COLUMN cache_write_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE daily_usage ADD COLUMN long_input_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE daily_usage ADD COLUMN long_output_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE daily_usage ADD COLUMN long_cached_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE daily_usage ADD COLUMN long_cache_write_tokens INTEGER NOT NULL DEFAULT 0;
