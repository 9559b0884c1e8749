"""Alert rules evaluated once a second.

In: what the agent has in memory of GPUs, host and runs (`rule_inputs`), the resolved rules (`rule_settings`).
Out: rows of alerts and events (`alert_rows`), notifications owed to a person. The rules and the engine are
`gputui.alerts`. Read `evaluation.py` first.
"""
