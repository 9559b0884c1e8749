"""Notifications: incidents and alerts sent by a command or a webhook.

In: rows of notifications that are owed. Out: deliveries with a deadline, tried again with a back-off, never by the
loop itself. Read `outbox.py` first.
"""
