"""Exports of runs: once by `gputui export`, or live as sinks, each in a separate process.

In: the rows of one run from a position on. Out: CSV, JSON lines, Parquet, SQLite, TensorBoard, MLflow, W&B. A sink is
one file and one row of `formats`. It stores its position and continues after a kill. Read `sink` first.
"""
