"""Recovery: why an attempt failed and what to do. Pure except for `evidence` and `checkpoints`.

In: exit record, logs, error files and checkpoints of an attempt, and its run's history. Out: one
incident with a kind, then one plan: actions, parameters and the checkpoint to resume from, or a
stop. `kinds` is the table, `evidence` collects, `classify` finds the kind, `decide` makes the plan.
Read those four in that order.
"""
