"""The screen: Textual pages over snapshots of the store.

In: rows of the store, read by one thread (``data``), and keys. Out: cells on the terminal (``terminal``) and command
rows for the agent (``commands``). Start with ``app``, then ``data/feed``, ``widgets/page`` and ``pages/overview/page``.
"""
