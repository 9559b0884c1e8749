"""Exports of runs: once by `gputui export`, or live as sinks, each a process of its own.

In: rows of one run since a place. Out: CSV, JSON lines, Parquet, SQLite, TensorBoard, MLflow, W&B. A sink is one file
and one row of the table of forms; it remembers what it wrote and goes on after a kill. Read `sink` first.
"""
