"""The display layer: which bytes reach the terminal."""

from gputui.tui.display.layer import DisplayCounters, DisplayLayer

__all__ = ["DisplayCounters", "DisplayLayer"]
