"""The curves of a run: metrics over step, time or epoch, hardware over the same axis, and markers.

In: the store, a `ChartRequest`. Out: `ChartData` with bins of `gputui.metrics.draw`; nothing is
drawn. Read ``model`` first, then ``live_curves``.
"""
