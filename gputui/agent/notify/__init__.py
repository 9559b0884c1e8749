"""Notifications: incidents and alerts sent by a command or a webhook.

In: rows of notifications to send. Out: deliveries by jobs, with a deadline and retries. Read `outbox.py` first.
"""
