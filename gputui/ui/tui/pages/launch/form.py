"""The launch form as a value: the fields of a profile, and their content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.redaction import redact_params
from gputui.core.secret_patterns import REDACTED
from gputui.core.text import clean
from gputui.core.units import count_of
from gputui.runs.command import format_value
from gputui.ui.tui.layout.lists import next_choice
from gputui.ui.tui.widgets.line_edit import LineEdit

if TYPE_CHECKING:
    # pydantic comes with it; it is imported where it is used, in a thread.
    from gputui.machine.gpu_model import GpuFacts
    from gputui.profiles.params import Parameter
    from gputui.profiles.profile_file import Profile, ProfileEntry

# Fields beside the parameters. Names of parameters have no spaces, so these cannot clash.
GPUS = "GPUs to use"
TARGET = "runs on"
NAME = "run's name"
PRIORITY = "queue priority"
MORE = "more parameter"
"""The line that unfolds the rarely used fields."""

MAX_PRIORITY = 1000

HIDDEN = "••••••••"

RUN_GROUP = "WHERE AND WHAT"
TRAINING_GROUP = "TRAINING"
OTHER_GROUP = "MORE"
_GROUPS = {
    "DATA AND MODEL": "task data data_dir data_path dataset data_column train_file val_file model "
    "model_name weights pretrained checkpoint tokenizer context block_size seq_len max_length "
    "image_size vocab_size",
    TRAINING_GROUP: "steps max_steps max_iters total_steps num_steps iterations epochs num_epochs "
    "num_train_epochs batch_size micro_batch_size per_device_train_batch_size grad_accum "
    "gradient_accumulation_steps lr learning_rate precision optimizer schedule seed "
    "gradient_checkpointing",
    OTHER_GROUP: "",
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names.split()}

LEAST_FOLDED = 4
"""Fewer rarely used fields than these are not folded."""


class Prefill(Struct, frozen=True):
    """What the form begins with.

    Attributes:
        profile: the name of the profile.
        params: the parameters of the run that is copied; none for a new one.
        gpu_count: how many GPUs the copied run had; None for the profile's number.
        path: the profile's file; None if unknown.
        run_id: the run that is copied; None for a new one.
        target: where the copied run ran; None for this machine.
        command: the words of a command in place of a profile.
    """

    profile: str
    params: Mapping[str, object] = msgspec.field(default_factory=dict)
    gpu_count: float | None = None
    path: str | None = None
    run_id: str | None = None
    target: str | None = None
    command: tuple[str, ...] = ()


class Field(Struct, frozen=True):
    """One line of the form.

    Attributes:
        key: the name of the parameter, or one of `GPUS`, `TARGET`, `NAME`, `PRIORITY` and `MORE`.
        default: the profile's value, as text.
        group: the heading above it.
        last: an earlier run's value if it differs.
        choices: the possible values; none if any is.
        parse: raises ValueError for a text that is no value.
        edit: what is typed.
        problem: what is wrong with that; "" if nothing.
        is_folded: whether it is rarely used.
    """

    key: str
    default: str
    hint: str
    group: str = RUN_GROUP
    last: str | None = None
    choices: tuple[str, ...] = ()
    parse: Callable[[str], object] = str
    edit: LineEdit = LineEdit()
    problem: str = ""
    is_folded: bool = False

    @property
    def label(self) -> str:
        """Its key as harmless text."""
        return clean(self.key)

    @property
    def is_parameter(self) -> bool:
        """True for a parameter of the profile."""
        return " " not in self.key

    @property
    def is_changed(self) -> bool:
        """True if it is not the profile's value."""
        return self.edit.text != self.default

    def mask(self, text: str) -> str:
        """``text`` as this field may show it: dots for a secret."""
        if self.is_parameter and text and redact_params({self.key: text}) != {self.key: text}:
            return HIDDEN
        return text

    def fill(self, edit: LineEdit) -> Field:
        """The field with other, checked content."""
        problem = ""
        try:
            self.parse(edit.text)
        except ValueError as error:
            problem = clean(getattr(error, "what", str(error)))
        return replace(self, edit=edit, problem=problem)


class Form(Struct, frozen=True):
    """The fields of a profile; none until it is read. Folded ones are shown if it ``is_open``."""

    entry: ProfileEntry | None = None
    fields: tuple[Field, ...] = ()
    is_open: bool = False

    @classmethod
    def of(
        cls,
        entry: ProfileEntry,
        last: Mapping[str, object],
        targets: Sequence[str],
        inventory: Sequence[GpuFacts] | None,
    ) -> Form:
        """The form of a profile.

        Args:
            entry: the profile; without fields if it is invalid.
            last: an earlier run's parameters.
            targets: the names of the home's targets.
            inventory: this machine's GPUs; None if no agent has read them.
        """
        if entry.profile is None:
            return cls(entry)
        parameters = [_parameter_field(*item, last) for item in entry.profile.parameters.items()]
        parameters.append(Field(PRIORITY, "0", "a higher one starts earlier", OTHER_GROUP, parse=priority_of))
        parameters.sort(key=lambda field: list(_GROUPS).index(field.group))
        rest = [field for field in parameters if field.group == OTHER_GROUP]
        if sum(field.last is None for field in rest) >= LEAST_FOLDED:
            folded = [replace(field, is_folded=field.last is None) for field in rest]
            parameters[-len(rest) :] = [Field(MORE, "", "", OTHER_GROUP), *folded]
        names = sorted({*targets, *entry.profile.form.targets})
        fields = (*_run_fields(entry.profile, names, inventory), *parameters)
        return cls(entry, tuple(replace(field, edit=LineEdit.at_end(field.default)) for field in fields))

    def visible(self, cursor: str | None, *, is_whole: bool = False) -> list[Field]:
        """The visible fields: all with ``is_whole``, else those that are not folded, and the current and changed
        ones."""
        if is_whole:
            return [field for field in self.fields if field.key != MORE]
        return [
            field
            for field in self.fields
            if self.is_open or not field.is_folded or field.is_changed or field.key == cursor
        ]

    @property
    def problems(self) -> list[str]:
        """What is wrong with each field."""
        return [f"{field.label}: {field.problem}" for field in self.fields if field.problem]

    @property
    def target(self) -> str | None:
        """The name of the target in the form; None for this machine."""
        return self.text(TARGET).strip() or None

    def text(self, key: str) -> str:
        """The content of a field; empty without it."""
        return next((field.edit.text for field in self.fields if field.key == key), "")

    def overrides(self) -> dict[str, str]:
        """The parameters that differ from the profile, as typed."""
        changed = (field for field in self.fields if field.is_parameter and field.is_changed)
        return {field.key: field.edit.text for field in changed}

    def fill(self, prefill: Prefill) -> Form:
        """The form with an earlier run's values in the fields that the profile still has."""
        # Secrets are not stored: the profile's own stays.
        values = {key: value for key, value in prefill.params.items() if REDACTED not in str(value)}
        count = self.text(GPUS)
        if "," in count:
            count = str(len([index for index in count.split(",") if index]))
        if prefill.gpu_count is not None and f"{prefill.gpu_count:g}" != count:
            values[GPUS] = f"{prefill.gpu_count:g}"
        if prefill.target is not None:
            values[TARGET] = prefill.target
        form = self
        for key, value in values.items():
            form = form.set(key, LineEdit.at_end(_text_of(value)))
        return form

    def set(self, key: str, edit: LineEdit) -> Form:
        """The form with other content in a field."""
        fields = list(self.fields)
        for index, field in enumerate(fields):
            if field.key == key:
                fields[index] = field.fill(edit)
        return replace(self, fields=tuple(fields))

    def step_choice(self, field: Field, by: int) -> Form:
        """The form with the next choice in a field, or folded or unfolded."""
        if field.key == MORE:
            return replace(self, is_open=by > 0)
        choices = field.choices
        text = field.edit.text
        if not choices:
            return self
        choice = next_choice(choices, text, by) if text in choices else choices[0]
        return self.set(field.key, LineEdit.at_end(choice))


def priority_of(text: str) -> int:
    """A queue priority as typed. Raises ValueError."""
    if not text.strip().lstrip("-").isdecimal() or abs(int(text)) > MAX_PRIORITY:
        raise ValueError(f"expected a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}")
    return int(text)


def _text_of(value: object) -> str:
    if value is None or isinstance(value, (str, int, float)):
        return clean(format_value(value))
    return clean(format_value(str(value)))


def _run_fields(profile: Profile, targets: Sequence[str], inventory: Sequence[GpuFacts] | None) -> list[Field]:
    from gputui.profiles.devices import parse_selection
    from gputui.profiles.resolve import usual_selection

    def target(text: str) -> None:
        if text.strip() not in ("", *targets):
            raise ValueError(f"expected {', '.join(targets)}, or nothing for this machine")

    selection = usual_selection(profile, inventory)
    gpus = ",".join(map(str, selection.devices)) or f"{selection.count * selection.share:g}"
    if selection.is_all:
        gpus = "all"
    if len(selection.devices) == 1 and isinstance(selection.devices[0], int):
        gpus += ","
    hint = "how many GPUs, which (0,1), or all; ^g chooses from a table"
    if gpus == "0":
        processes = profile.form.nproc if isinstance(profile.form.nproc, int) else 1
        hint = f"no GPU: {count_of(processes, 'process')} on the CPU; else {hint}"
    fields = [Field(GPUS, gpus, hint, parse=parse_selection)]
    if targets:
        target_hint = clean(f"this machine if empty, or {', '.join(targets)}; ^t asks how it is")
        fields.append(Field(TARGET, "", target_hint, parse=target))
    return [*fields, Field(NAME, profile.name, "runs are named NAME-1, NAME-2, …")]


def _parameter_field(name: str, parameter: Parameter, last: Mapping[str, object]) -> Field:
    default = _text_of(parameter.default)
    before = None
    if name in last:
        before = _text_of(last[name])
        if before == default or REDACTED in before:
            before = None
    choices: tuple[str, ...] = ()
    if parameter.choices:
        choices = tuple(clean(format_value(choice)) for choice in parameter.choices)
    elif parameter.kind == "bool":
        choices = ("false", "true")
    hints = [parameter.help]
    if not parameter.help or parameter.is_bounded or parameter.choices:
        hints.append(parameter.expected)
    # A parameter with help is worth showing.
    group = TRAINING_GROUP if parameter.help or parameter.choices else OTHER_GROUP
    return Field(
        name,
        default,
        clean(", ".join(filter(None, hints))),
        group=_GROUP_OF.get(name, group),
        last=before,
        choices=choices,
        parse=parameter.parse,
    )
