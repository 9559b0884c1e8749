"""Output to the terminal: the cells that changed, its modes, and the pace of updates.

In: what Textual composed. Out: the fewest bytes from what the terminal shows to what it should show. Read ``grid``
first, then ``layer``, which alone (with ``driver``) uses private names of Textual.
"""
