"""Lines of metrics in the store: what became of them, and what readers ask of them.

In: lines by the agent's readers (`gputui.metrics`), with extremes for charts in their transaction. Out: the newest
values (`queries`) or those of a past moment (`past`), reduced curves (`envelopes`), step times, what the watch of a
living attempt and exports read. Read first: `queries`.
"""
