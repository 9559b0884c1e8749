"""Colours: the style of each style key, in each theme.

In: the style keys of lines. Out: Textual styles (``colors``) or escape codes (``sgr``). Read ``looks`` first.
"""
