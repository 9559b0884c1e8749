"""The agent: one process per state directory that records the machine and supervises its runs.

In: the sampler's messages, command rows, `exit.json` of attempts, metrics files. Out: rows of the
database (it is the only writer of history), executors, notifications. It is crash-only: all it knows
is in the database and the run folders. Read `loop.py` first, then `lifecycle/supervisor.py`.
"""
