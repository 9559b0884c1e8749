"""The launch form as a value: the profiles, the fields of the chosen one, and their content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.redaction import redact_params
from gputui.core.secret_patterns import REDACTED
from gputui.core.text import clean
from gputui.runs.command import format_value
from gputui.runs.spec import Scalar
from gputui.ui.tui.widgets.line_edit import LineEdit

if TYPE_CHECKING:
    # pydantic comes with it; it is imported where it is used, in a thread.
    from gputui.profiles.params import Parameter
    from gputui.profiles.profile_file import ProfileEntry

# Fields beside the parameters. Names of parameters have no spaces, so these cannot clash.
GPUS = "the GPUs"
PLACE = "runs on"
NAME = "run's name"
PRIORITY = "queue priority"
MORE = "more parameters"
"""The line that unfolds the rarely used fields."""

MAX_PRIORITY = 1000

HIDDEN = "••••••••"

RUN_GROUP, OTHER_GROUP = "WHERE AND WHAT", "MORE"
_GROUPS = {
    "DATA AND MODEL": "task data data_dir data_path dataset data_column train_file val_file model model_name weights "
    "pretrained checkpoint tokenizer context block_size seq_len max_length image_size vocab_size",
    "TRAINING": "steps max_steps max_iters total_steps num_steps iterations epochs num_epochs num_train_epochs "
    "batch_size micro_batch_size per_device_train_batch_size grad_accum gradient_accumulation_steps lr learning_rate "
    "precision optimizer schedule gradient_checkpointing seed",
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names.split()}

LEAST_FOLDED = 4
"""Fewer rarely used fields than these are not folded."""

_UNITS = {
    "seconds": "s", "secs": "s", "ms": "ms", "minutes": "min", "hours": "h", "bytes": "bytes", "kb": "kB", "mb": "MB",
    "gb": "GB", "mib": "MiB", "gib": "GiB", "percent": "%", "steps": "steps", "iters": "steps", "epochs": "epochs",
    "tokens": "tokens", "samples": "samples",
}  # fmt: skip


class Prefill(Struct, frozen=True):
    """Values of an earlier run that replace the profile's own. ``path`` is the profile's file, if known."""

    profile: str
    params: Mapping[str, object] = msgspec.field(default_factory=dict)
    gpu_count: int | None = None
    path: str | None = None
    run_id: str | None = None
    target: str | None = None


class Field(Struct, frozen=True):
    """One line of the form. A secret is shown only while it is typed.

    Attributes:
        default: the profile's value as text.
        hint: which values it takes.
        last: the value in the newest run of the profile, if it differs.
        choices: the only texts that it takes; empty if it takes others.
    """

    key: str
    label: str
    default: str
    hint: str
    is_parameter: bool = True
    last: str | None = None
    group: str = RUN_GROUP
    choices: tuple[str, ...] = ()
    unit: str = ""

    def shown(self, text: str) -> str:
        """``text`` as this field may show it: dots for a secret."""
        if not self.is_parameter or not text:
            return text
        return HIDDEN if redact_params({self.key: text}) != {self.key: text} else text


class Form(Struct, frozen=True):
    """The profiles, the chosen one, its fields and their content.

    Attributes:
        targets: names of the home's targets.
        is_fresh: whether the cursor has just entered its field: typing then replaces the content, an editing key
            edits it.
        folded: keys of rarely used fields, shown only while the form ``is_open``.
    """

    entries: tuple[ProfileEntry, ...] = ()
    last_params: Mapping[str, Mapping[str, object]] = msgspec.field(default_factory=dict)
    targets: tuple[str, ...] = ()
    chosen: int = 0
    fields: tuple[Field, ...] = ()
    edits: Mapping[str, LineEdit] = msgspec.field(default_factory=dict)
    problems: Mapping[str, str] = msgspec.field(default_factory=dict)
    cursor: int = 0
    is_fresh: bool = True
    folded: frozenset[str] = frozenset()
    is_open: bool = False

    @property
    def shown(self) -> list[int]:
        """The indices of the visible fields. A changed field is always visible."""
        return [
            number
            for number, item in enumerate(self.fields)
            if self.is_open or item.key not in self.folded or number == self.cursor or self.is_changed(item)
        ]

    @property
    def entry(self) -> ProfileEntry | None:
        """The chosen profile."""
        return self.entries[self.chosen] if self.entries else None

    @property
    def current(self) -> Field | None:
        """The field under the cursor."""
        return self.fields[self.cursor] if self.fields else None

    def text(self, key: str) -> str:
        """The content of a field."""
        return self.edits[key].text

    def is_changed(self, item: Field) -> bool:
        """Whether a field differs from the profile."""
        return self.text(item.key) != item.default

    def choose(self, number: int) -> Form:
        """The form of another profile with its defaults; ``number`` wraps around."""
        if not self.entries:
            return self
        chosen = number % len(self.entries)
        entry = self.entries[chosen]
        items = _fields(entry, self.last_params.get(entry.name, {}), self.targets)
        edits = {item.key: LineEdit.at_end(item.default) for item in items}
        return Form(self.entries, self.last_params, self.targets, chosen, items, edits, folded=_folded(items))

    @property
    def target(self) -> str | None:
        """The name of the target in the form; None for this machine."""
        return (self.text(PLACE).strip() or None) if PLACE in self.edits else None

    def prefilled(self, prefill: Prefill) -> Form:
        """The form with an earlier run's values in the fields that the profile still has."""
        form = self
        for number, item in enumerate(self.fields):
            value = prefill.params.get(item.key) if item.is_parameter else None
            if isinstance(value, str) and REDACTED in value:
                continue  # secrets are not stored: the profile's own stays
            if item.key == GPUS and prefill.gpu_count is not None and str(prefill.gpu_count) != _count_of(item.default):
                value = prefill.gpu_count
            if item.key == PLACE:
                value = prefill.target
            if value is not None:
                form = replace(form, cursor=number).edit(LineEdit.at_end(clean(format_value(_scalar(value)))))
        changed = {item.key for item in form.fields if form.is_changed(item)}
        return replace(form, cursor=0, is_fresh=True, folded=form.folded - changed)

    def with_gpus(self, text: str) -> Form:
        """The form with another selection of GPUs."""
        place = next((number for number, item in enumerate(self.fields) if item.key == GPUS), None)
        if place is None:
            return self
        return replace(replace(self, cursor=place).edit(LineEdit.at_end(text)), cursor=self.cursor)

    def move(self, by: int) -> Form:
        """The form with the cursor on another visible field."""
        if not self.fields:
            return self
        shown = self.shown
        return replace(self, cursor=shown[(shown.index(self.cursor) + by) % len(shown)], is_fresh=True)

    def turn(self, by: int) -> Form:
        """The form with the next choice in the current field, or folded or unfolded."""
        item = self.current
        if item is None:
            return self
        if item.key == MORE:
            return replace(self, is_open=by > 0)
        if not item.choices:
            return self
        text = self.text(item.key)
        place = item.choices.index(text) + by if text in item.choices else 0
        return replace(self.edit(LineEdit.at_end(item.choices[place % len(item.choices)])), is_fresh=True)

    def type(self, text: str) -> Form:
        """The form with text typed or pasted into the current field."""
        item = self.current
        if item is None or item.key == MORE:
            return self
        return self.edit((LineEdit() if self.is_fresh else self.edits[item.key]).insert(text))

    def edit(self, edit: LineEdit) -> Form:
        """The form with other, checked content in the current field."""
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
        """What is wrong with the content of a field, in a few words."""
        from gputui.profiles.devices import SelectionError, parse_selection
        from gputui.profiles.params import UnfitValueError

        entry = self.entry
        if entry is None or entry.profile is None:
            return None
        try:
            if item.key == GPUS:
                parse_selection(text)
            elif item.key == PLACE:
                known = targets_of(entry, self.targets)
                if text.strip() and text.strip() not in known:
                    return f"expected {', '.join(known)}, or nothing for this machine"
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


def _places(names: list[str]) -> list[Field]:
    """The field for the target, if there are any targets."""
    hint = f"this machine if empty, or {', '.join(names)}; ^t asks how it is"
    return [Field(PLACE, "runs on", "", clean(hint), is_parameter=False)] if names else []


def priority_of(text: str) -> int | None:
    """A queue priority as typed; None if it is invalid."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if -MAX_PRIORITY <= number <= MAX_PRIORITY else None


def _scalar(value: object) -> Scalar:
    """A stored parameter as a scalar; other values as their text."""
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _count_of(selection: str) -> str:
    """How many GPUs a selection names, as text; "all" stays."""
    return str(len([part for part in selection.split(",") if part])) if "," in selection else selection


def targets_of(entry: ProfileEntry, targets: tuple[str, ...]) -> list[str]:
    """The names of all targets that a profile may run on: those of the home and its own."""
    own = () if entry.profile is None else entry.profile.form.targets
    return sorted({*targets, *own})


def _fields(entry: ProfileEntry, last: Mapping[str, object], targets: tuple[str, ...]) -> tuple[Field, ...]:
    profile = entry.profile
    if profile is None:
        return ()
    selection = profile.form.gpus
    gpus = "all" if selection.is_all else ",".join(map(str, selection.devices)) or str(selection.count)
    if len(selection.devices) == 1 and isinstance(selection.devices[0], int):
        gpus += ","
    items = [
        Field(GPUS, "GPUs", gpus, "how many, which (0,1), or all; ^g chooses from a table", is_parameter=False),
        *_places(targets_of(entry, targets)),
        Field(NAME, "run's name", profile.name, "runs are named NAME-1, NAME-2, …", is_parameter=False),
    ]
    parameters = [_parameter_field(name, parameter, last) for name, parameter in profile.parameters.items()]
    for group in (*_GROUPS, OTHER_GROUP):
        items += [item for item in parameters if item.group == group]
    items.append(
        Field(PRIORITY, "queue priority", "0", "a higher one starts earlier", is_parameter=False, group=OTHER_GROUP)
    )
    if not _folded(items):
        return tuple(items)
    place = next(number for number, item in enumerate(items) if item.group == OTHER_GROUP)
    items.insert(place, Field(MORE, MORE, "", "", is_parameter=False, group=OTHER_GROUP))
    return tuple(items)


def _parameter_field(name: str, parameter: Parameter, last: Mapping[str, object]) -> Field:
    default = clean(format_value(parameter.default))
    before = clean(format_value(_scalar(last[name]))) if name in last else None
    if before is not None and REDACTED in before:
        before = None
    choices: tuple[str, ...] = ()
    if parameter.kind == "bool":
        choices = ("false", "true")
    elif parameter.choices:
        choices = tuple(clean(format_value(choice)) for choice in parameter.choices)
    bounds = parameter.expected if parameter.is_bounded or parameter.choices or not parameter.help else ""
    return Field(
        name,
        clean(name),
        default,
        clean(", ".join(part for part in (parameter.help, bounds) if part)),
        last=before if before != default else None,
        # A parameter with help is worth showing.
        group=_GROUP_OF.get(name, "TRAINING" if parameter.help or parameter.choices else OTHER_GROUP),
        choices=choices,
        unit=_UNITS.get(name.rpartition("_")[2].lower(), "") if "_" in name else "",
    )


def _folded(items: Sequence[Field]) -> frozenset[str]:
    """Keys of the fields that are folded at first: those of no group, unless they are few or the last run changed
    them."""
    rest = [item for item in items if item.group == OTHER_GROUP and item.key != MORE and item.last is None]
    return frozenset(item.key for item in rest) if len(rest) >= LEAST_FOLDED else frozenset()
