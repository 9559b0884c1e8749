"""What a chart shows of a run: metrics over step, time or epoch, hardware under the same axis, and what happened.

Reads the store, gives values of `gputui.charts`; draws nothing.
"""
