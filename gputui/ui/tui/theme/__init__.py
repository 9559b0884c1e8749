"""Colours: the style of each style key, in each theme.

In: the style keys of lines. Out: Textual styles (``colors``). Read ``looks`` first.
"""
