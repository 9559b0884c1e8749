"""Errors whose text is for the person who asked."""

from __future__ import annotations


class ExplainedError(Exception):
    """What a person asked for is not done; the text says why and what helps, in one line for each problem. It ends a
    command. ``is_refusal``: nothing is wrong with what was asked, but it cannot be done here and now."""

    is_refusal = False
