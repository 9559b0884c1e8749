"""Metrics of runs, from the files that scripts write to rows, exactly once.

In: JSON lines, CSV, a program's output, trainer_state.json, TensorBoard and W&B files, which may grow, rotate or be
rewritten. Out: rows, with the read position in the same transaction. `contract` defines a line, `tailer` follows a
file, `marks` recognises lines that were read before, `ingest` stores them, `background_sources` reads files that may
not answer. Read `ingest` first.
"""
