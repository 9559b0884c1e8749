"""How a command is refused, or answered later."""

from __future__ import annotations


class RefusedError(Exception):
    """The command cannot be carried out; the text says why and what to do. Nothing was changed. ``kind`` is for
    programs that ask (`gputui.store.commands`)."""

    def __init__(self, text: str, kind: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind


class UnansweredError(Exception):
    """The answer takes a while and is being prepared: the command stays, and is looked at again."""
