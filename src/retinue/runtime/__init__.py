"""The runtime: create, run, supervise and finish agent runs."""
