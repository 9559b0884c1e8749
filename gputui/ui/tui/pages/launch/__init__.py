"""Launching a run: ``form`` is the form as a value, ``plan`` what it resolves to, ``view`` draws it, ``page`` is the
screen.
"""
