"""The collectors: one file a source, each turning AWS's answers into readings.

A collector makes probes and lets errors rise: the collection records them.
"""
