"""Compare a text by the values in it, so that its words may change."""

from __future__ import annotations


def mentions(text: str | None, *values: object) -> bool:
    """Return whether the text has these values, in this order."""
    at = 0
    for value in values:
        found = (text or "").find(str(value), at)
        if found < 0:
            return False
        at = found + len(str(value))
    return True
