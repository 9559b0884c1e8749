"""The SQLite database shared by the agent, which alone writes history, and the views.

Read first: `database`, then `runs` and `hardware`; `series` declares all values of GPUs and host.
"""
