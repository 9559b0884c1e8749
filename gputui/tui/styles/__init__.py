"""Colours: which style each key of a line has."""
