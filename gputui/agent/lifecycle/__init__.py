"""The life of a run, from the queue to its last attempt's postmortem and back.

In: queued runs, free GPUs, exit records, evidence. Out: attempts started by executors, state
transitions, incidents and the plans decided for them. In the order of an attempt's life:
`admission` (what may start), `preparation` (its plan), `execution` (until its processes have
ended), `postmortem` (why they did), `attempt_end` (what to do), `gpus` (are they free),
`start_conditions`. Read `live_attempt.py` first, then `supervisor.py`.
"""
