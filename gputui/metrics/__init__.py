"""Metrics of runs, from the files that scripts write to rows, exactly once.

In: JSON lines, CSV, a program's output, trainer_state.json, TensorBoard and W&B files, which may grow, rotate or be
rewritten. Out: rows, with the offset they were read up to in the same transaction. `contract` says what a line means,
`tailer` follows a file, `marks` recognises lines that were read before, `ingest` stores them. Read `ingest` first.
"""
