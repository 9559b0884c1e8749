"""The SQLite database shared by the agent, which alone writes history, and the views, which read it
and insert commands.

In: rows from the recorder, the supervisor and the metrics readers. Out: frozen values; readers of
history take ``at``. Read first: `database` (opening, schema), then `runs` and `hardware`; `series`
declares all values of GPUs and host; `samples`, `rollups` and `gpu_use` read them over time.
"""
