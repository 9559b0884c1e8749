"""Messages to the recipients of ``notify.yaml``: `news` reads what has happened, `messages` words it, `outbox` has
`sender` send it in a process of its own.
"""
