"""What a format has learned, as it is stored: without secrets."""

from __future__ import annotations

from typing import Any, NamedTuple

from gputui.core.redaction import Redactor

# Levels of names whose parts are remembered: learned, learning, candidates, a candidate.
_LEARNED_DEPTH = 3
_MAX_LEARNED_PARTS = 512  # bounds a state that is stored with each batch


class _LearnedPart(NamedTuple):
    printed: Any
    redacted: Any


class LearnedTexts:
    """Redacts what a format has learned. Little of it changes from one batch to the next: only that is looked at."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        # Each part by the names that lead to it.
        self._parts: dict[tuple[str, ...], _LearnedPart] = {}

    def redacted(self, part: Any, path: tuple[str, ...] = ()) -> Any:
        """Plain data, with every text in it redacted."""
        earlier = self._parts.get(path)
        if earlier is not None and earlier.printed == part:
            return earlier.redacted
        if isinstance(part, dict) and len(path) < _LEARNED_DEPTH:
            redacted: Any = {name: self.redacted(item, (*path, name)) for name, item in part.items()}
        else:
            redacted = self._redactor.named("".join(path[-1:]), part)
        if len(self._parts) >= _MAX_LEARNED_PARTS:
            self._parts.clear()
        self._parts[path] = _LearnedPart(part, redacted)
        return redacted
