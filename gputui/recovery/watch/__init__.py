"""Detectors for live attempts: hangs, diverging numbers, slow ranks, leaks. Pure.

In: metrics lines, two readings of the ranks' processes, the time. Out: a finding, or None. Read `verdict` first.
"""
