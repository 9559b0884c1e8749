"""The life of a run, from the queue to its last attempt's postmortem and back.

In: queued runs, free GPUs, exit records, evidence. Out: attempts started by executors, state transitions, incidents and
the plans decided for them. In the order of an attempt's life: `admission` (what may start), `attempt_launch`,
`active_run`, `examination` and `postmortem` (why it ended, what to do), `release` (are the GPUs free), `waiting`.
Read `supervisor.py` first.
"""
