"""Health of running attempts: hangs, diverging numbers, slow ranks, leaks, GPU faults, logs that grow.

In: metrics, process table, logs and GPU samples of each attempt. Out: an early end of an attempt with its cause, the
stack dump taken before it, the incident folder, bounded logs. Read `monitor.py` first, then `attempt_state.py`.
"""
