"""Sinks of runs: live exports of metrics to files and trackers.

In: the sinks of a run's specification. Out: one process per sink, which is restarted, and adopted by the next agent.
Read `sinks.py` first.
"""
