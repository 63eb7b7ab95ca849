"""Execution of runs in this process, with the system clock and process locks."""
