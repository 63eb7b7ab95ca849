"""Benchmarks of Retinue, compared with a baseline and with other agent frameworks: `make bench`."""
