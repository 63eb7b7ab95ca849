"""The daemon: an API that programs like, and the page that people look at."""
