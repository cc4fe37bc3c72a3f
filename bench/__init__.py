"""Benchmarks: figures are ratios within one run, or counts. `make bench`, `make bench-storm`."""
