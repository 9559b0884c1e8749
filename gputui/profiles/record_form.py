"""The YAML of ``record.yaml`` as a pydantic model."""

from __future__ import annotations

import grp
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import PlainValidator, model_validator

from gputui.core.yaml_forms.file import parse_file
from gputui.core.yaml_forms.forms import Model, expected, problem, validated
from gputui.core.yaml_forms.quantities import parse_duration, parse_size
from gputui.store.agent import LEAST_BYTES, LEAST_RAW_SECONDS, Retention

_DEFAULT = Retention()


def _age(least_seconds: float) -> Callable[[object], float | None]:
    def read(age: object) -> float | None:
        if age is False or age in ("off", "forever"):
            return None
        seconds = parse_duration(age) if isinstance(age, str) else None
        if seconds is None:
            raise expected("a time such as 36h, 7d, 8w or 5y, or forever")
        if seconds < least_seconds:
            raise expected(f"{least_seconds / 3600:g}h or more")
        return seconds

    return read


def _bytes(limit: object) -> int | None:
    if limit is False or limit in ("off", "unlimited"):
        return None
    size = parse_size(limit) if isinstance(limit, str) else None
    if size is None:
        raise expected("a size such as 500MB or 4GiB, or unlimited")
    if size < LEAST_BYTES:
        raise expected(f"{LEAST_BYTES >> 20}MiB or more")
    return size


def _group(name: object) -> int:
    if isinstance(name, str):
        with suppress(KeyError):
            return grp.getgrnam(name).gr_gid
    raise expected("the name of a group of this machine")


_Age = Annotated[float | None, PlainValidator(_age(3600.0))]


class RecordForm(Model):
    """How long what is recorded stays, how large it gets, and who may read it.

    Attributes:
        raw: The maximum age of samples in seconds, None for no limit.
        minutes: The maximum age of means over minutes in seconds, None for no limit.
        hours: The maximum age of means over hours in seconds, None for no limit.
        events: The maximum age of events in seconds, None for no limit.
        size: The database's maximum size in bytes, None for no limit.
        group: The number of the group that may read the home, None for nobody else.
    """

    raw: Annotated[float | None, PlainValidator(_age(LEAST_RAW_SECONDS))] = _DEFAULT.raw_seconds
    minutes: _Age = _DEFAULT.minutes_seconds
    hours: _Age = _DEFAULT.hours_seconds
    events: _Age = _DEFAULT.events_seconds
    size: Annotated[int | None, PlainValidator(_bytes)] = _DEFAULT.size_bytes
    group: Annotated[int | None, PlainValidator(_group)] = None

    @model_validator(mode="after")
    def _is_ascending(self) -> RecordForm:
        ages = [age or math.inf for age in (self.raw, self.minutes, self.hours)]
        if ages != sorted(ages):
            raise problem("minutes are kept at least as long as raw samples, and hours at least as long as minutes")
        return self


def parse_record_form(text: str, path: Path) -> RecordForm:
    """The settings of the file's text. Raises ProfileError."""
    return validated(parse_file(text, path), path, RecordForm)


def read_retention(text: str, path: Path) -> Retention:
    """The default retention with the overrides of the file's text. Raises ProfileError."""
    form = parse_record_form(text, path)
    return Retention(form.raw, form.minutes, form.hours, form.events, form.size)
