"""Launching a run: ``form`` is a value, ``plan`` what it resolves to, ``view`` draws it."""
