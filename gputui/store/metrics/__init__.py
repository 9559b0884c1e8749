"""Metrics lines in the store.

In: lines from the agent's readers (`gputui.metrics`), with reductions for charts in the same
transaction. Out: the newest values (`queries`) or those of a past time (`past`), reduced curves
(`envelopes`), step times, and the lines for health checks and exports. Read first: `queries`.
"""
