"""Files, locks, strict JSON and YAML, threads for disk work, and API tokens."""
