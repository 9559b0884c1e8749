"""Runs and their attempts: what they are, how one is started and where, and what can be seen of one.

In: a resolved specification, rows of the store, an attempt's folder, procfs. Out: commands, records, logs, processes.
`spec` is what is run, `command` and `launchers` how it is started, `executors` and `shim` where,
`repository` its rows, `logs` and `log_levels` what it printed, `attempt_processes` and `identity` its processes.
Read first: `spec.py`, then `gputui/store/run_states.py`, the life of a run.
"""
