"""Runs and their attempts: specification, command, executor, logs and processes.

`spec` is what is run, `command` and `launchers` how, `executors` and `shim` where; `repository` has
its rows. Read first: `spec.py`, then `gputui/store/run_states.py`, the life of a run.
"""
