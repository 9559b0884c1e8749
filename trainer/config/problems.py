"""What is wrong with a setting, in words that follow its name, and the names that somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import ValidationError

from trainer.config.schema import Settings


def flag(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def nearest(name: str, known: Iterable[str] | None = None) -> str:
    """The known name, by default a setting's, most like this one; empty if none is."""
    candidates = list(Settings.model_fields if known is None else known)
    return next(iter(difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)), "")


def did_you_mean(name: str, known: Iterable[str] | None = None) -> str:
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""


def first(error: ValidationError) -> tuple[str, str]:
    """The name of the first setting that is wrong, and what is wrong, such as `` should be greater than 0, got -1``."""
    errors = error.errors(include_url=False)
    place = errors[0]["loc"]
    if not place:  # it does not fit the others
        return errors[0]["ctx"]["name"], errors[0]["msg"]
    same = [
        one["msg"].removeprefix("Input ").replace("valid tuple", "list") for one in errors if one["loc"][0] == place[0]
    ]
    return str(place[0]), f" {', or '.join(same)}, got {errors[0]['input']!r}"
