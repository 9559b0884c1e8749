"""Texts of gputui in a sink: names, notes as sentences, and values that every target takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputui.core.redaction import BY_LOOK
from gputui.store.metrics.exported import Note

PROJECT = "gputui"
"""The experiment or project in trackers."""

NOTE = "gputui."
"""The prefix of names that gputui adds."""

STORY_SENTENCES = 100
"""The newest notes, which a tracker's description has."""


def clean_value(value: Any) -> Any:
    """Plain JSON without secrets and without invalid Unicode, such as a file name in another
    encoding."""
    return valid_unicode(BY_LOOK.value(value))


def valid_unicode(value: Any) -> Any:
    """Plain JSON, or a text, that can be written as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {valid_unicode(name): valid_unicode(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [valid_unicode(item) for item in value]
    return value


def sentence(note: Note) -> str:
    """A note as a sentence."""
    data = note.data
    match note.kind:
        case "attempt":
            text = f"attempt {note.attempt} begins"
            if data["resumed_from"]:
                text += f" from {data['resumed_from']}"
            if changes := ", ".join(f"{name}={value}" for name, value in data["changed"].items()):
                text += f" with {changes}"
        case "incident":
            text = f"attempt {note.attempt} ended"
            if data["step"] is not None:
                text += f" at step {data['step']}"
            text += f": {data['summary']} ({data['kind']})"
        case "decision":
            text = f"{data['verdict']}: {data['reason']}"
        case _:
            text = f"{data['state']}: {data['cause']}"
    return str(clean_value(text))
