"""The launch form as a value: the profiles, the fields of the chosen one, and what stands in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gputui.charts.safe_text import clean
from gputui.redaction import REDACTED, redact_params
from gputui.runs.command import format_value
from gputui.runs.spec import Scalar
from gputui.tui.widgets.line_edit import LineEdit

if TYPE_CHECKING:
    # pydantic comes with it; it is imported where it is used, in a thread.
    from gputui.profiles.loading import ProfileEntry

# No parameter can be called so: their names have no spaces.
GPUS = "the GPUs"
NAME = "run's name"
PRIORITY = "queue priority"

MAX_PRIORITY = 1000

HIDDEN = "••••••••"


@dataclass(frozen=True, slots=True)
class Preset:
    """What a form begins with in place of the profile's own values: those of an earlier run. ``path`` is the very file
    of the profile, where it is known."""

    profile: str
    params: Mapping[str, object] = field(default_factory=dict)
    gpu_count: int | None = None
    path: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """One line of the form. ``hint`` says what it takes; ``default`` is the profile's value as text, ``last`` that of
    the newest run of the profile where it was another. A secret is shown only while it is typed."""

    key: str
    label: str
    default: str
    hint: str
    is_parameter: bool = True
    last: str | None = None

    def shown(self, text: str) -> str:
        """A content of this field as it may be seen."""
        if not self.is_parameter or not text:
            return text
        return HIDDEN if redact_params({self.key: text}) != {self.key: text} else text


@dataclass(frozen=True, slots=True)
class Form:
    """The profiles, the chosen one, its fields and what stands in them. In a field just come to (``is_fresh``) what
    is typed takes the place of what stands there; an editing key changes it instead."""

    entries: tuple[ProfileEntry, ...] = ()
    last_params: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    chosen: int = 0
    fields: tuple[Field, ...] = ()
    edits: Mapping[str, LineEdit] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    cursor: int = 0
    is_fresh: bool = True

    @property
    def entry(self) -> ProfileEntry | None:
        """The chosen profile."""
        return self.entries[self.chosen] if self.entries else None

    @property
    def current(self) -> Field | None:
        """The field under the cursor."""
        return self.fields[self.cursor] if self.fields else None

    def text(self, key: str) -> str:
        """What stands in a field."""
        return self.edits[key].text

    def is_changed(self, item: Field) -> bool:
        """Whether a field differs from the profile."""
        return self.text(item.key) != item.default

    def choose(self, number: int) -> Form:
        """Another profile, with its defaults; ``number`` wraps around."""
        if not self.entries:
            return self
        chosen = number % len(self.entries)
        entry = self.entries[chosen]
        items = _fields(entry, self.last_params.get(entry.name, {}))
        edits = {item.key: LineEdit.at_end(item.default) for item in items}
        return Form(self.entries, self.last_params, chosen, items, edits)

    def preset(self, preset: Preset) -> Form:
        """The form with an earlier run's values where the profile still has their fields."""
        form = self
        for number, item in enumerate(self.fields):
            value = preset.params.get(item.key) if item.is_parameter else None
            if isinstance(value, str) and REDACTED in value:
                continue  # a secret is not stored: the profile's own stands
            if item.key == GPUS and preset.gpu_count is not None and str(preset.gpu_count) != _count_of(item.default):
                value = preset.gpu_count
            if value is not None:
                form = replace(form, cursor=number).edit(LineEdit.at_end(clean(format_value(_scalar(value)))))
        return replace(form, cursor=0, is_fresh=True)

    def with_gpus(self, text: str) -> Form:
        """The form with other GPUs."""
        place = next((number for number, item in enumerate(self.fields) if item.key == GPUS), None)
        if place is None:
            return self
        return replace(replace(self, cursor=place).edit(LineEdit.at_end(text)), cursor=self.cursor)

    def move(self, by: int) -> Form:
        """The cursor on another field."""
        if not self.fields:
            return self
        return replace(self, cursor=(self.cursor + by) % len(self.fields), is_fresh=True)

    def type(self, text: str) -> Form:
        """Text typed or pasted into the current field."""
        item = self.current
        if item is None:
            return self
        return self.edit((LineEdit() if self.is_fresh else self.edits[item.key]).insert(text))

    def edit(self, edit: LineEdit) -> Form:
        """The current field with another content, checked at once."""
        item = self.current
        if item is None:
            return self
        edits = {**self.edits, item.key: edit}
        problems = {key: text for key, text in self.problems.items() if key != item.key}
        problem = self._check(item, edit.text)
        if problem is not None:
            problems[item.key] = problem
        return replace(self, edits=edits, problems=problems, is_fresh=False)

    def overrides(self) -> dict[str, str]:
        """The parameters that differ from the profile, as typed."""
        return {item.key: self.text(item.key) for item in self.fields if item.is_parameter and self.is_changed(item)}

    def _check(self, item: Field, text: str) -> str | None:
        """What is wrong with a field by itself, in a few words."""
        from gputui.profiles.devices import SelectionError, parse_selection
        from gputui.profiles.params import UnfitValueError

        entry = self.entry
        if entry is None or entry.profile is None:
            return None
        try:
            if item.key == GPUS:
                parse_selection(text)
            elif item.key == PRIORITY:
                if priority_of(text) is None:
                    return f"expected a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}"
            elif item.is_parameter:
                entry.profile.parameters[item.key].parse(text)
        except UnfitValueError as error:
            return clean(error.what)
        except SelectionError as error:
            return clean(str(error))
        return None


def priority_of(text: str) -> int | None:
    """A place in the queue as typed; None where it is none."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if -MAX_PRIORITY <= number <= MAX_PRIORITY else None


def _scalar(value: object) -> Scalar:
    """A stored parameter as one; what is none is its own text."""
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _count_of(selection: str) -> str:
    """How many GPUs a selection names, as text; "all" stays."""
    return str(len([part for part in selection.split(",") if part])) if "," in selection else selection


def _fields(entry: ProfileEntry, last: Mapping[str, object]) -> tuple[Field, ...]:
    profile = entry.profile
    if profile is None:
        return ()
    selection = profile.form.gpus
    gpus = "all" if selection.is_all else ",".join(map(str, selection.devices)) or str(selection.count)
    if len(selection.devices) == 1 and isinstance(selection.devices[0], int):
        gpus += ","
    items = [
        Field(GPUS, "GPUs", gpus, "how many, which (0,1), or all; ^g chooses from a table", is_parameter=False),
        Field(NAME, "run's name", profile.name, "runs are called after it", is_parameter=False),
    ]
    for name, parameter in profile.parameters.items():
        hint = clean(parameter.help or parameter.expected)
        default = clean(format_value(parameter.default))
        before = clean(format_value(_scalar(last[name]))) if name in last else None
        if before is not None and REDACTED in before:
            before = None
        items.append(Field(name, clean(name), default, hint, last=before if before != default else None))
    items.append(Field(PRIORITY, "queue priority", "0", "a higher one starts earlier", is_parameter=False))
    return tuple(items)
