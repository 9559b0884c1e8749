"""Exports of runs: once by `gputui export`, or live as sinks, all in one process for a home.

In: the rows of one run from a position on. Out: CSV, JSON lines, Parquet, SQLite, TensorBoard,
MLflow, W&B. A sink is one class and one row of `formats`. Its cursor is in the store, so that it
continues after a kill. Read `sink`, then `follow`.
"""
