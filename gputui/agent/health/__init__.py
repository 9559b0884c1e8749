"""Health of running attempts and of the machine: feeds the detectors, and writes what they observe.

In: stored metrics lines, process table, logs and GPU samples. Out: observations, alerts, an early
end of an attempt with its cause, the stack dump taken before it, the incident folder, bounded logs.
Read `monitor` and `alert_evaluation` first.
"""
