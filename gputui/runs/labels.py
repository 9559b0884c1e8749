"""The name, tags and note that a person gives a run; ``labels.json`` keeps them beside the
database."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gputui.core.errors import ExplainedError
from gputui.core.redaction import redact_text
from gputui.runs.foreign_json import read_foreign_json
from gputui.runs.repository import fitting_name
from gputui.runs.submission import write_private
from gputui.store.runs import LONGEST_NOTE

LABELS_FILE = "labels.json"
MOST_TAGS = 16  # a list shows no more

_TAG = re.compile(r"[^\W_][\w.:/=-]{0,31}")


class LabelError(ExplainedError, ValueError):
    """An invalid name, tag or note; the text says what is valid."""


class Labels(NamedTuple):
    """The labels of a run. An empty note is no note."""

    name: str
    tags: tuple[str, ...] = ()
    note: str = ""


def checked_labels(name: str, tags: Iterable[str], note: str) -> Labels:
    """Labels as they are stored: tags once and in order, secrets redacted. Raises LabelError."""
    return Labels(checked_name(name), checked_tags(tags), checked_note(note))


def checked_name(text: str) -> str:
    """A name that a person gives a run, taken as it is. Raises LabelError."""
    name = _without_secret(text, "name")
    if not name or fitting_name(name) != name:
        raise LabelError(f"{name!r} is no name; {fitting_name(name)!r} would be (letters, digits, . _ -, at most 60)")
    return name


def checked_note(text: str) -> str:
    """A note on one line, with secrets redacted. Raises LabelError."""
    # A command line may have lone surrogates, which cannot be stored.
    readable = text.encode("utf-8", "replace").decode()
    note = redact_text(" ".join(readable.split()))
    if len(note) > LONGEST_NOTE:
        raise LabelError(f"a note has at most {LONGEST_NOTE} characters, not {len(note)}")
    return note


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags without their ``#``, once and in order. Raises LabelError."""
    sorted_tags = tuple(sorted({checked_tag(tag) for tag in tags}))
    if len(sorted_tags) > MOST_TAGS:
        raise LabelError(f"a run has at most {MOST_TAGS} tags, not {len(sorted_tags)}")
    return sorted_tags


def checked_tag(text: str) -> str:
    """A tag without its ``#``. Raises LabelError."""
    tag = _without_secret(text, "tag").removeprefix("#")
    if not _TAG.fullmatch(tag):
        rule = "a tag is a letter or digit and at most 31 letters, digits and . _ - : / ="
        raise LabelError(f"{tag!r} is no tag; {rule}")
    return tag


def _without_secret(text: str, what: str) -> str:
    """The stripped text. Raises LabelError, whose text does not repeat the secret."""
    stripped = text.strip()
    if redact_text(stripped) != stripped:
        raise LabelError(f"this {what} looks like a secret, and names and tags are shown; choose another")
    return stripped


def store_labels(connection: sqlite3.Connection, run_id: str, labels: Labels) -> None:
    """Replace a run's labels. Works inside the caller's transaction."""
    connection.execute("UPDATE runs SET name = ? WHERE run_id = ?", (labels.name, run_id))
    connection.execute(
        "INSERT OR REPLACE INTO run_labels (change_id, run_id, tags, note) "
        "VALUES ((SELECT coalesce(max(change_id), 0) + 1 FROM run_labels), ?, ?, ?)",
        (run_id, json.dumps(labels.tags), labels.note or None),
    )


def write_labels(run_dir: Path, labels: Labels) -> None:
    """Write the labels to the run's folder. Raises OSError."""
    write_private(run_dir / LABELS_FILE, labels._asdict())


def read_labels(run_dir: Path) -> Labels | None:
    """The labels in the run's folder; None if it has no valid ones."""
    try:
        stored: Any = read_foreign_json(run_dir / LABELS_FILE)
        return checked_labels(str(stored["name"]), [str(tag) for tag in stored["tags"]], str(stored["note"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
