"""Runs and their attempts: specification, command, executor, logs and processes.

In: a resolved specification, rows of the store, an attempt's folder, procfs. Out: commands,
records, logs, processes. `spec` is what is run, `command` and `launchers` how, `executors` and
`shim` where. `repository` has its rows, `logs` its output, `processes` and `identity` its
processes. Read first: `spec.py`, then `gputui/store/run_states.py`, the life of a run.
"""
