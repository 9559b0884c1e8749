"""Why an attempt failed and what to do about it. Pure but for `evidence`, `checkpoint_search` and the file checks.

In: what an attempt left (exit record, logs, error files, checkpoints) and its run's history. Out: one incident with a
kind, then one plan: actions, parameters, the checkpoint to resume from, or giving up. `kinds` is the table, `evidence`
collects, `classify` names the incident, `decide` makes the plan. Read those four in that order.
"""
