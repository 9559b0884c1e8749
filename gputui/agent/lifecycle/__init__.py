"""The life of a run, from the queue to its last attempt's postmortem and back.

In: queued runs, free GPUs, exit records, evidence. Out: attempts started by executors, state transitions, incidents and
the plans decided for them. In the order of an attempt's life: `admission` (what may start), `attempt_launch`,
`execution`, `sweep`, `postmortem` (why it ended), `ending` (what to do), `release` (are the GPUs free), `waiting`.
`run_files` has the phases of a profile, parameters that change at a checkpoint; an attempt's own phases are in
`active_run`.
Read `active_run.py` first (a run and the phase of its attempt), then `supervisor.py`.
"""
