"""Alert rules evaluated once a second.

In: the current state of GPUs, host and runs in memory (`rule_inputs`), the resolved rules (`rule_settings`).
Out: rows of alerts and events (`alert_rows`), notifications to send. The rules and the engine are in
`gputui.recovery.alerts`. Read `evaluation.py` first.
"""
