"""Targets as a person wrote them, checked by what each one's kind has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from gputui.runs.executors import LOCAL, REMOTE_KINDS, Executors
from gputui.yaml_forms.document import KeyPath
from gputui.yaml_forms.forms import NAME_PATTERN, findings
from gputui.yaml_forms.nearest import nearest


def target_findings(given: object, place: KeyPath = ()) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """What is wrong with a mapping of targets at ``place``: each with its place and the fields of a
    Problem."""
    if not isinstance(given, Mapping):
        yield place, {"problem": "targets are a mapping (name: {kind: …})"}
        return
    for name, one in given.items():
        at = (*place, name)
        if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name) or name == LOCAL:
            yield at, {"problem": "a target's name has letters, digits, '_', '.' and '-', and is not local"}
        elif not isinstance(one, Mapping) or "kind" not in one:
            yield at, {"problem": f"a target has a kind: {', '.join(REMOTE_KINDS)}"}
        elif one["kind"] not in REMOTE_KINDS:
            kind = str(one["kind"])
            yield (
                (*at, "kind"),
                {
                    "expected": f"one of {', '.join(REMOTE_KINDS)}",
                    "found": kind,
                    "nearest": nearest(kind, list(REMOTE_KINDS)),
                },
            )
        else:
            try:
                validated(one)
            except ValidationError as error:
                model = Executors().of(one).options()
                for found, what in findings(error, model):
                    yield (*at, *found), what


def validated(given: Mapping[str, Any]) -> dict[str, Any]:
    """One target as it is stored with a run, without its name. Raises ValidationError."""
    return Executors().of(given).options().model_validate(dict(given)).to_json()
