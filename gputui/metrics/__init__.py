"""Metrics of runs, from the files that scripts write to rows, exactly once.

In: JSON lines, CSV, a program's output, trainer_state.json, TensorBoard, W&B and MLflow files, which may
grow, rotate or be rewritten. Out: rows, with the read position in the same transaction. `contract`
defines a line, `reader` follows a file, `rewritten` and `reread` compare one that is read anew with what is stored of
it, `ingest` stores the lines, `background` reads what may not answer, `learning` finds metrics in lines that no
profile describes, `written_sources` in files, `name_owners` says which source has a name. Read `ingest` first.
"""
