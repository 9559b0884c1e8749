"""The launch form as a value: the fields of a profile, and their content."""

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
from gputui.ui.tui.widgets.line_edit import LineEdit

if TYPE_CHECKING:
    # pydantic comes with it; it is imported where it is used, in a thread.
    from gputui.profiles.params import Parameter
    from gputui.profiles.profile_file import Profile, ProfileEntry

# Fields beside the parameters. Names of parameters have no spaces, so these cannot clash.
GPUS = "GPUs to use"
PLACE = "runs on"
NAME = "run's name"
PRIORITY = "queue priority"
MORE = "more parameter"
"""The line that unfolds the rarely used fields."""

MAX_PRIORITY = 1000

HIDDEN = "••••••••"

RUN_GROUP, TRAINING_GROUP, OTHER_GROUP = "WHERE AND WHAT", "TRAINING", "MORE"
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
    """The profile to launch, by its file if that is known, and an earlier run's values."""

    profile: str
    params: Mapping[str, object] = msgspec.field(default_factory=dict)
    gpu_count: int | None = None
    path: str | None = None
    run_id: str | None = None
    target: str | None = None


class Field(Struct, frozen=True):
    """One line of the form: the profile's value, a hint at those that it takes, that of an earlier
    run if it differs, and the only ones that it takes. A secret is shown only while typed."""

    key: str
    default: str
    hint: str
    group: str = RUN_GROUP
    last: str | None = None
    choices: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its name, as harmless text."""
        return clean(self.key)

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter of the profile."""
        return " " not in self.key

    def shown(self, text: str) -> str:
        """``text`` as this field may show it: dots for a secret."""
        given = {self.key: text} if self.is_parameter and text else {}
        return HIDDEN if redact_params(given) != given else text


class Form(Struct, frozen=True):
    """The fields of a profile and their content; empty until the profile is read. Those that are
    ``folded`` are shown if it ``is_open``."""

    entry: ProfileEntry | None = None
    fields: tuple[Field, ...] = ()
    edits: Mapping[str, LineEdit] = msgspec.field(default_factory=dict)
    targets: tuple[str, ...] = ()
    problems: Mapping[str, str] = msgspec.field(default_factory=dict)
    folded: frozenset[str] = frozenset()
    is_open: bool = False

    @classmethod
    def of(cls, entry: ProfileEntry, last: Mapping[str, object], targets: Sequence[str]) -> Form:
        """The form of a profile, with an earlier run's parameters and the home's targets."""
        if entry.profile is None:
            return cls(entry)
        names = tuple(sorted({*targets, *entry.profile.form.targets}))
        parameters = [_parameter_field(*item, last) for item in entry.profile.parameters.items()]
        parameters.append(Field(PRIORITY, "0", "a higher one starts earlier", OTHER_GROUP))
        parameters.sort(key=lambda field: list(_GROUPS).index(field.group))
        rest = [field for field in parameters if field.group == OTHER_GROUP]
        folded = frozenset(field.key for field in rest if field.last is None)
        folded = folded if len(folded) >= LEAST_FOLDED else frozenset()
        if folded:
            parameters.insert(len(parameters) - len(rest), Field(MORE, "", "", OTHER_GROUP))
        fields = (*_run_fields(entry.profile, names), *parameters)
        edits = {field.key: LineEdit.at_end(field.default) for field in fields}
        return cls(entry, fields, edits, names, folded=folded)

    def shown(self, cursor: str | None) -> list[Field]:
        """The visible fields; the one under the cursor and changed ones always are."""
        hidden = frozenset() if self.is_open else self.folded - {cursor}
        return [field for field in self.fields if field.key not in hidden or self.is_changed(field)]

    @property
    def target(self) -> str | None:
        """The name of the target in the form; None for this machine."""
        return (self.text(PLACE).strip() or None) if PLACE in self.edits else None

    def text(self, key: str) -> str:
        """The content of a field."""
        return self.edits[key].text

    def is_changed(self, field: Field) -> bool:
        """Whether a field differs from the profile."""
        return self.text(field.key) != field.default

    def overrides(self) -> dict[str, str]:
        """The parameters that differ from the profile, as typed."""
        changed = [field for field in self.fields if field.is_parameter and self.is_changed(field)]
        return {field.key: self.text(field.key) for field in changed}

    def prefilled(self, prefill: Prefill) -> Form:
        """The form with an earlier run's values in the fields that the profile still has."""
        # Secrets are not stored: the profile's own stays.
        known = {name: value for name, value in prefill.params.items() if name in self.edits}
        values = {name: value for name, value in known.items() if REDACTED not in str(value)}
        gpus = self.text(GPUS) if GPUS in self.edits else ""
        count = str(len([part for part in gpus.split(",") if part])) if "," in gpus else gpus
        if prefill.gpu_count is not None and str(prefill.gpu_count) != count:
            values[GPUS] = prefill.gpu_count
        if prefill.target is not None and PLACE in self.edits:
            values[PLACE] = prefill.target
        form = self
        for key, value in values.items():
            form = form.set(key, LineEdit.at_end(_text_of(value)))
        return replace(form, folded=form.folded - values.keys())

    def set(self, key: str, edit: LineEdit) -> Form:
        """The form with other, checked content in a field."""
        problems = {**self.problems, key: self._problem(key, edit.text)}
        wrong = {name: problem for name, problem in problems.items() if problem is not None}
        return replace(self, edits={**self.edits, key: edit}, problems=wrong)

    def turn(self, field: Field, by: int) -> Form:
        """The form with the next choice in a field, or folded or unfolded."""
        if field.key == MORE:
            return replace(self, is_open=by > 0)
        if not field.choices:
            return self
        text = self.text(field.key)
        place = field.choices.index(text) + by if text in field.choices else 0
        return self.set(field.key, LineEdit.at_end(field.choices[place % len(field.choices)]))

    def _problem(self, key: str, text: str) -> str | None:
        """What is wrong with the content of a field, in a few words."""
        from gputui.profiles.devices import SelectionError, parse_selection
        from gputui.profiles.params import UnfitValueError

        assert self.entry is not None and self.entry.profile is not None
        parameter = self.entry.profile.parameters.get(key)
        try:
            if key == GPUS:
                parse_selection(text)
            elif key == PLACE and text.strip() and text.strip() not in self.targets:
                return f"expected {', '.join(self.targets)}, or nothing for this machine"
            elif key == PRIORITY and priority_of(text) is None:
                return f"expected a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}"
            elif parameter is not None:
                parameter.parse(text)
        except UnfitValueError as error:
            return clean(error.what)
        except SelectionError as error:
            return clean(str(error))
        return None


def priority_of(text: str) -> int | None:
    """A queue priority as typed; None if it is invalid."""
    try:
        return int(text) if -MAX_PRIORITY <= int(text) <= MAX_PRIORITY else None
    except ValueError:
        return None


def _text_of(value: object) -> str:
    """A stored parameter as text."""
    is_scalar = value is None or isinstance(value, (str, int, float))
    return clean(format_value(value if is_scalar else str(value)))  # type: ignore[arg-type]


def _run_fields(profile: Profile, targets: Sequence[str]) -> list[Field]:
    chosen = profile.form.gpus
    gpus = "all" if chosen.is_all else ",".join(map(str, chosen.devices)) or str(chosen.count)
    if len(chosen.devices) == 1 and isinstance(chosen.devices[0], int):
        gpus += ","
    place = clean(f"this machine if empty, or {', '.join(targets)}; ^t asks how it is")
    return [
        Field(GPUS, gpus, "how many, which (0,1), or all; ^g chooses from a table"),
        *([Field(PLACE, "", place)] if targets else []),
        Field(NAME, profile.name, "runs are named NAME-1, NAME-2, …"),
    ]


def _parameter_field(name: str, parameter: Parameter, last: Mapping[str, object]) -> Field:
    default = _text_of(parameter.default)
    before = _text_of(last[name]) if name in last else default
    choices: tuple[str, ...] = ("false", "true") if parameter.kind == "bool" else ()
    if parameter.choices:
        choices = tuple(clean(format_value(choice)) for choice in parameter.choices)
    is_free = parameter.help and not parameter.is_bounded and not parameter.choices
    return Field(
        name,
        default,
        clean(", ".join(filter(None, (parameter.help, "" if is_free else parameter.expected)))),
        # A parameter with help is worth showing.
        _GROUP_OF.get(name, TRAINING_GROUP if parameter.help or parameter.choices else OTHER_GROUP),
        None if before == default or REDACTED in before else before,
        choices,
    )
