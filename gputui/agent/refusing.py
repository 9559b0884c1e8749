"""How a command is refused."""

from __future__ import annotations


class RefusedError(Exception):
    """The command cannot be carried out; the text says why and what to do. Nothing was changed."""
