"""Types of single values in a profile: each parses its value and reports what it expects."""

from __future__ import annotations

import math
import re
import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    StringConstraints,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

from gputui.core.yaml_forms.forms import IN_QUOTES, expected, problem
from gputui.core.yaml_forms.problems import one_of
from gputui.core.yaml_forms.quantities import DURATION_PATTERN, SIZE_PATTERN, is_number, parse_duration, parse_size
from gputui.metrics.values import UNITS
from gputui.profiles.alerts_form import AlertsForm
from gputui.profiles.devices import EXPECTED as EXPECTED_GPUS
from gputui.profiles.devices import NoSelectionError, Selection, SelectionError, parse_selection
from gputui.profiles.params import MAX_INTEGER, NAME_PATTERN, RESERVED_NAMES
from gputui.profiles.recovery_form import RecoveryForm
from gputui.recovery.policies import POLICIES
from gputui.reports.export.formats import FORMATS
from gputui.runs.command import PieceError, find_pieces
from gputui.runs.spec import Scalar

# Variables that gputui sets. Another value would break leases, evidence of failures or metrics.
_OWN_ENVIRONMENT = re.compile(r"GPUTUI_.*|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|TORCHELASTIC_ERROR_FILE")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_NO_METRIC = r"names no metric; write a named group such as (?P<loss>\S+)"
_NAMED_GROUP = re.compile(r"\(\?P<(\w+)")


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise expected("text without NUL characters")
    return text


def _words(command_line: object) -> list[str]:
    """The words of a command line: a list as it is, or text split like a shell does."""
    if isinstance(command_line, str):
        text = _no_nul(command_line)
        try:
            return shlex.split(text)
        except ValueError as error:
            raise problem(f"cannot be split into words: {str(error).lower()}") from error
    if isinstance(command_line, list) and all(isinstance(word, str) for word in command_line):
        return [_no_nul(word) for word in command_line]
    if isinstance(command_line, dict):
        raise expected(f"text, or a list of words ({IN_QUOTES})")
    raise expected("text, or a list of words")


def _pieces(arguments: list[str]) -> list[str]:
    try:
        find_pieces(arguments)
    except PieceError as error:
        raise problem(str(error)) from error
    return arguments


def _size(size_text: object) -> int:
    size = parse_size(size_text) if isinstance(size_text, str) else None
    if size is None:
        raise expected("a size with its unit such as 10GiB or 500MB")
    return size


def _time_limit(limit: object) -> float:
    seconds = parse_duration(limit) if isinstance(limit, str) else None
    if not seconds:
        raise expected("a time such as 30min, 1h30m or 2d")
    return seconds


def _metric_name(name: object) -> str:
    # SQLite cannot name a key with a quote.
    if not isinstance(name, str) or not name.strip() or '"' in name or not name.isprintable():
        raise expected("the name of a metric, such as train/loss")
    return name


def _gpus(selection: object) -> Selection:
    try:
        return parse_selection(selection)
    except NoSelectionError as error:
        raise expected(EXPECTED_GPUS) from error
    except SelectionError as error:
        raise problem(str(error)) from error


def _nproc(nproc: object) -> int | Literal["gpus"]:
    if nproc == "gpus":
        return "gpus"
    if isinstance(nproc, int) and not isinstance(nproc, bool) and 1 <= nproc <= 1024:
        return nproc
    raise expected('a number of processes from 1 to 1024, or "gpus" for one per GPU')


def _scalar(scalar: object) -> Scalar:
    if isinstance(scalar, float) and not math.isfinite(scalar):
        raise expected("a finite number (put it in quotes to pass it as text)")
    if isinstance(scalar, int) and abs(scalar) > MAX_INTEGER:
        raise expected("a whole number of at most 63 bits (put it in quotes to pass it as text)")
    if scalar is None or isinstance(scalar, (bool, int, float)):
        return scalar
    if isinstance(scalar, str):
        return _no_nul(scalar)
    raise expected("a single value: text, a number, true, false or null")


def _bound(bound: object) -> int | float:
    if not is_number(bound):
        raise expected("a number")
    return bound


def _parameter(parameter: object) -> object:
    """Expand the short form ``lr: 0.1``."""
    if isinstance(parameter, dict):
        return parameter
    return {"default": parameter}


def _parameter_name(name: str) -> str:
    if name in RESERVED_NAMES:
        raise problem(f"the name is taken: {{{name}}} is set by gputui")
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise problem("a parameter's name is letters, digits, '_', '.' and '-', and begins with a letter or '_'")
    return name


def _environment_name(name: str) -> str:
    if _OWN_ENVIRONMENT.fullmatch(name):
        hint = "; choose GPUs with the key gpus" if name.startswith("CUDA") else ""
        raise problem(f"set by gputui itself{hint}")
    if _ENVIRONMENT_NAME.fullmatch(name) is None:
        raise problem("an environment variable's name is letters, digits and '_', and begins with no digit")
    return name


def _pattern(text: str) -> str:
    try:
        compiled = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        also = ""
        if not set(_NAMED_GROUP.findall(text)) - {"step"}:
            also = f"; and it {_NO_METRIC}"
        raise problem(f"not a regular expression: {error}{also}") from error
    if not set(compiled.groupindex) - {"step"}:
        raise problem(_NO_METRIC)
    return text


def _unit(unit: object) -> float:
    """The factor that converts a unit to seconds, bytes or a plain count."""
    if isinstance(unit, str) and unit in UNITS:
        return UNITS[unit]
    if is_number(unit) and unit != 0:
        return float(unit)
    raise expected(f"a unit ({', '.join(UNITS)}) or the number to multiply with")


# Alerts and recovery are checked as forms, but kept as written: a form is full of defaults, and
# only what a person changed is stored with a run.
def _alerts(alerts: object, check: ValidatorFunctionWrapHandler) -> str | dict[str, Any] | None:
    if isinstance(alerts, dict):
        check(alerts)
        return alerts
    if alerts not in ("standard", "off") and alerts is not False:
        raise expected("standard, off, or a mapping of what is changed")
    if alerts == "standard":
        return "standard"
    return None


def _recovery(recovery: object, check: ValidatorFunctionWrapHandler) -> dict[str, Any]:
    """``off`` and ``standard`` become ``{"policy": …}``."""
    if recovery is False:
        return {"policy": "off"}
    if isinstance(recovery, str):
        recovery = {"policy": recovery}
    if not isinstance(recovery, dict):
        raise expected("a policy's name, off, or a mapping")
    return {**recovery, "policy": check(recovery).policy}


def _sinks(sinks: object) -> dict[str, str | None]:
    """Expand one name or a list of names. `gputui.profiles.crosscheck` checks them."""
    if isinstance(sinks, str):
        return {sinks: None}
    if isinstance(sinks, list) and all(isinstance(name, str) for name in sinks):
        return dict.fromkeys(sinks)
    if isinstance(sinks, dict):
        targets: dict[str, str | None] = dict.fromkeys(sinks)
        targets.update({name: target for name, target in sinks.items() if isinstance(target, str)})
        return targets
    raise expected(f"{one_of(FORMATS)}, a list of them, or a mapping of them to their places")


def any_of(*schemas: dict[str, Any]) -> WithJsonSchema:
    """The JSON Schema of a value that a validator expands from several forms."""
    return WithJsonSchema({"anyOf": list(schemas)})


Text = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_no_nul)]
ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
Words = Annotated[
    list[str],
    BeforeValidator(_words),
    any_of({"type": "string"}, {"type": "array", "items": {"type": ["string", "number"]}}),
]
Arguments = Annotated[Words, AfterValidator(_pieces)]
Size = Annotated[int, BeforeValidator(_size), WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN})]
TimeLimit = Annotated[
    float, BeforeValidator(_time_limit), WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN})
]
Value = Annotated[Any, BeforeValidator(_scalar), WithJsonSchema({"type": ["string", "number", "boolean", "null"]})]
Bound = Annotated[Any, BeforeValidator(_bound), WithJsonSchema({"type": "number"})]

ParameterName = Annotated[str, AfterValidator(_parameter_name)]
EnvironmentName = Annotated[str, AfterValidator(_environment_name)]
EnvironmentValue = Annotated[str, AfterValidator(_no_nul), WithJsonSchema({"type": ["string", "number", "boolean"]})]
MetricName = Annotated[str, BeforeValidator(_metric_name)]
MetricPattern = Annotated[str, AfterValidator(_pattern)]
Gpus = Annotated[
    Selection,
    BeforeValidator(_gpus),
    any_of(
        {"type": "integer", "minimum": 0},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "string"},
        {"type": "array", "minItems": 1, "items": {"type": ["integer", "string"]}},
    ),
]
Processes = Annotated[
    Any, BeforeValidator(_nproc), any_of({"type": "integer", "minimum": 1, "maximum": 1024}, {"const": "gpus"})
]
if TYPE_CHECKING:
    Alerts = str | dict[str, Any] | None
    Recovery = dict[str, Any]
else:  # what the validators return, not the forms that they check
    Alerts = Annotated[
        AlertsForm, WrapValidator(_alerts), any_of({"enum": ["standard", "off", False]}, {"type": "object"})
    ]
    Recovery = Annotated[
        RecoveryForm, WrapValidator(_recovery), any_of({"enum": [*POLICIES, False]}, {"type": "object"})
    ]
Sinks = Annotated[
    dict[str, Any],
    BeforeValidator(_sinks),
    any_of(
        {"enum": list(FORMATS)},
        {"type": "array", "items": {"enum": list(FORMATS)}},
        {"type": "object", "propertyNames": {"enum": list(FORMATS)}},
    ),
]
Unit = Annotated[float, BeforeValidator(_unit), any_of({"enum": list(UNITS)}, {"type": "number"})]
ShortForm = BeforeValidator(_parameter)
