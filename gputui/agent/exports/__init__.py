"""Sinks of runs: metrics passed on to files and trackers while a run lives.

In: the sinks of a run's specification. Out: one process per sink, started, found again after the agent's death, and
heard at its end. Read `sinks.py` first.
"""
