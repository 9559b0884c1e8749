"""The one SQLite file between the agent, which alone writes history, and the views, which read it and insert commands.

In: rows by the recorder, the supervisor and the metrics readers. Out: frozen values; readers of what has a past take
``at``. Read first: `database` (opening, schema, migrations), then `runs` and `hardware`; `series` declares every value
of GPUs and the host, `samples`, `rollups`, `sample_spans` and `gpu_counts` read them over time.
"""
