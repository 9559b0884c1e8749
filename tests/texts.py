"""Compare a text by the values in it, so that its words may change."""

from __future__ import annotations


def mentions(text: str | None, *values: object) -> bool:
    """Return whether the text has these values, in this order."""
    at = 0
    for value in values:
        position = (text or "").find(str(value), at)
        if position < 0:
            return False
        at = position + len(str(value))
    return True
