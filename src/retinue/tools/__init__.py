"""Tools that agents can use: one file per tool or family of tools."""
