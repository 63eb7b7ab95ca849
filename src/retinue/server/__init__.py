"""The daemon: an HTTP API for programs, and a web page for people."""
