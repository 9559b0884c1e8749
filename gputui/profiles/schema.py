"""The YAML of a profile as pydantic models: one field for each key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from gputui.core.yaml_forms.document import KeyPath
from gputui.core.yaml_forms.forms import Model, Name, problem, with_summaries
from gputui.metrics.formats import HISTORY, PRINTED_STREAMS
from gputui.metrics.printed import OutputPatterns
from gputui.metrics.trackers import TRACKERS
from gputui.profiles.devices import EXPECTED as EXPECTED_GPUS
from gputui.profiles.devices import Selection
from gputui.profiles.params import Parameter, ParameterError
from gputui.profiles.values import (
    Alerts,
    Arguments,
    Bound,
    EnvironmentName,
    EnvironmentValue,
    Gpus,
    MetricName,
    MetricPattern,
    ModuleName,
    ParameterName,
    Processes,
    Recovery,
    ShortForm,
    Sinks,
    Size,
    Text,
    TimeLimit,
    Unit,
    Value,
    Words,
    any_of,
)
from gputui.runs.launchers import FOR_RANKS, LAUNCHERS
from gputui.runs.learned_checkpoints import LEARNED
from gputui.runs.spec import MetricsKind

if TYPE_CHECKING:
    LauncherName = str
else:  # which mypy cannot read
    LauncherName = Literal[tuple(LAUNCHERS)]


class ParameterForm(Model):
    """A parameter with its limits and its help in a launch form.

    Attributes:
        choices: Limits a value of any kind; the other limits are for numbers only.
    """

    default: Value = Field(description="the default, whose type decides what is accepted; null for none")
    help: str | None = Field(None, description="a short text for the launch page")
    choices: list[Value] | None = Field(None, min_length=1, description="the allowed values")
    min: Bound | None = Field(None, description="the smallest allowed value")
    max: Bound | None = Field(None, description="the largest allowed value")
    multiple_of: Annotated[int, Field(ge=1, le=2**31)] | None = Field(None, description="allow only its multiples")
    scope: Literal["rank", "global"] | None = Field(None, description="whether a batch or accumulation counts per rank")

    @model_validator(mode="after")
    def _is_consistent(self) -> ParameterForm:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise problem("min is larger than max")
        if self.choices is not None and (self.min is not None or self.max is not None):
            raise problem("give choices, or min and max, not both")
        if self.multiple_of is not None and (isinstance(self.default, bool) or not isinstance(self.default, int)):
            raise problem("multiple_of is for a parameter whose default is a whole number")
        try:
            if self.default is not None:
                self.parameter("default").parse(self.default)
        except ParameterError as error:
            raise problem(str(error)) from error
        return self

    def parameter(self, name: str) -> Parameter:
        choices = tuple(self.choices or ())
        return Parameter(
            name,
            self.default,
            self.help,
            choices=choices,
            minimum=self.min,
            maximum=self.max,
            multiple_of=self.multiple_of,
        )


class Requires(Model):
    """Resources that must be free before the run starts."""

    gpu_memory: Size | None = Field(None, description="free memory on each GPU, such as 10GiB")
    disk: Size | None = Field(None, description="free disk space in the home, such as 20GiB")


class Metrics(Model):
    """A source of the run's metrics."""

    source: MetricsKind = Field(description="the kind of source")
    path: Text | None = Field(None, description="the file, folder or glob; may begin with {run_dir}")
    patterns: list[MetricPattern] | None = Field(None, min_length=1, description="regular expressions for output")
    step: Text | None = Field(None, description="the column or group that holds the step, such as epoch")
    units: dict[str, Unit] = Field(default_factory=dict, description="units of groups, such as {step_time: ms}")

    @model_validator(mode="after")
    def _is_consistent(self) -> Metrics:
        if self.is_printed:
            if self.patterns is None:
                raise problem(f"source {self.source} needs patterns")
            if self.path is not None:
                raise problem(f"source {self.source} has no path")
            try:
                OutputPatterns(self.patterns, self.step)
            except ValueError as error:
                raise problem(str(error)) from error
        elif self.patterns is not None or self.units:
            raise problem("only sources stdout, stderr and output have patterns and units")
        elif self.source not in ("auto", "jsonl") and self.path is None:
            raise problem(f"source {self.source} needs a path")
        elif self.source in (HISTORY, *TRACKERS) and self.step is not None:
            raise problem(f"source {self.source} has its own steps")
        return self

    @property
    def is_printed(self) -> bool:
        return self.source in PRINTED_STREAMS


def _expanded(content: object) -> object:
    """The short forms as a mapping of MetricsForm: ``off``, ``auto``, a list of sources, and the keys of one source."""
    if content is False or content == "off":
        return {"sources": []}
    if content == "auto":
        return {}
    if isinstance(content, list):
        return {"sources": content}
    if not isinstance(content, dict) or "sources" in content or content.keys().isdisjoint(Metrics.model_fields):
        return content
    of_form = {key: value for key, value in content.items() if key in MetricsForm.model_fields}
    return {**of_form, "sources": [{key: value for key, value in content.items() if key not in of_form}]}


def metrics_place(content: object, place: KeyPath) -> KeyPath:
    """The place of a problem in the file, whose key ``metrics`` has this content."""
    if place[:2] != ("metrics", "sources"):
        return place
    if isinstance(content, list):
        return ("metrics", *place[2:])
    if isinstance(content, dict) and "sources" not in content:
        return ("metrics", *place[3:])
    return place


def _distinct(sources: list[Metrics]) -> list[Metrics]:
    if sum(source.is_printed for source in sources) > 1:
        raise problem("give one source of what is printed, with all its patterns")
    paths = [source.path or source.source for source in sources]
    if len(set(paths)) < len(paths):
        raise problem("the same file is given twice")
    return sources


class BestForm(Model):
    """The metric that a run is judged by."""

    name: MetricName = Field(description="the metric that the run is judged by, such as val/accuracy")
    mode: Literal["min", "max"] = Field(description="whether less (min) or more (max) of it is better")


class MetricsForm(Model):
    """The metrics of a run: their sources, and what they mean."""

    sources: Annotated[
        list[Metrics],
        AfterValidator(_distinct),
        WithJsonSchema({"type": "array", "items": Metrics.model_json_schema()}),
    ] = Field(
        default_factory=lambda: [Metrics(source="auto", path=None, patterns=None, step=None)],
        description="a list of sources, each with the keys below",
    )
    loss: MetricName | None = Field(None, description="the metric that is the training loss; else by the usual names")
    best: Annotated[BestForm | None, WithJsonSchema(BestForm.model_json_schema())] = Field(
        None, description="the metric that the run is judged by; else a loss"
    )


_SOURCE_KEYS = Metrics.model_json_schema()
_FORM_KEYS = MetricsForm.model_json_schema()["properties"]
_ONE_SOURCE = {
    **_SOURCE_KEYS,
    "properties": {**_SOURCE_KEYS["properties"], "loss": _FORM_KEYS["loss"], "best": _FORM_KEYS["best"]},
}
"""The JSON Schema of a single source beside what its metrics mean."""


class Checkpoints(Model):
    """The location of checkpoints, and how a run resumes from one."""

    dir: Text | None = Field(
        None,
        description="the folder, relative to the working directory, which it is with pattern auto; else "
        "{run_dir}/checkpoints",
    )
    pattern: Text = Field(
        LEARNED,
        description="a glob of their names in the folder, such as step_*.pt; auto finds them below it by their content",
    )
    resume: Words = Field(
        default_factory=list, description="arguments to add on a resume, such as --resume {checkpoint}"
    )
    keep: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="how many of the newest to keep, and at least what recovery may go back over; else all"
    )
    keep_best: MetricName | None = Field(None, description="keep the best one by this metric too; goes with keep")

    @model_validator(mode="after")
    def _keeps_best_beside_newest(self) -> Checkpoints:
        if self.keep_best is not None and self.keep is None:
            raise problem("goes with keep: 3 or another number of the newest to keep", at=("keep_best",))
        return self


class PhaseForm(Model):
    """A part of a run that changes parameters."""

    until: Annotated[int, Field(ge=1)] | None = Field(None, description="the step whose checkpoint ends the phase")
    params: dict[ParameterName, Value] = Field(min_length=1, description="the parameters of the phase")


class ProfileForm(Model):
    """A profile: how to start, monitor and recover an existing training script.

    Attributes:
        other_names: What people call a key elsewhere, for a hint.
        command: Replaces ``script`` and ``module``: exactly one of the three is given.
    """

    other_names: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("processes", "nproc_per_node", "num_processes", "ranks", "world_size", "workers"), "nproc"),
        **dict.fromkeys(("num_gpus", "gpu_count", "devices"), "gpus"),
        **dict.fromkeys(("arguments", "argv", "flags"), "args"),
        **dict.fromkeys(("environment", "variables"), "env"),
        **dict.fromkeys(("cwd", "directory", "working_directory"), "workdir"),
        **dict.fromkeys(("interpreter", "executable"), "python"),
        **dict.fromkeys(("parameters", "hyperparameters"), "params"),
        **dict.fromkeys(("time_limit", "walltime"), "time"),
    }

    name: Name | None = Field(None, description="the prefix of run names; else the file's name")
    description: str | None = Field(None, description="one sentence for lists and the launch page")
    launcher: LauncherName = Field(FOR_RANKS.name, description="what starts the processes")
    script: Text | None = Field(None, description="the script, relative to the profile's folder")
    module: ModuleName | None = Field(None, description="a module instead, as with python -m")
    command: Annotated[Arguments, Field(min_length=1)] | None = Field(None, description="the whole command instead")
    python: Text | None = Field(
        None, description="the interpreter, a path or a name; else [that of your shell](#environment)"
    )
    workdir: Text | None = Field(
        None, description="the working directory, relative to the profile's folder; may begin with {run_dir}"
    )
    gpus: Gpus = Field(
        Selection(count=1), description=EXPECTED_GPUS + "; 0 for the CPU; else 1", json_schema_extra={"default": 1}
    )
    beside_desktop: bool = Field(
        default=False, description="also start on a GPU of whose memory a display, browser and the like hold over 2 GiB"
    )
    min_gpus: Annotated[int, Field(ge=1, le=256)] | None = Field(
        None, description="the fewest GPUs with which recovery may continue; else never with fewer"
    )
    nproc: Processes = Field("gpus", description="processes that the launcher starts; gpus is one for each GPU")
    visible: Literal["uuid", "index"] = Field("uuid", description="the form of CUDA_VISIBLE_DEVICES")
    requires: Requires = Field(
        default_factory=lambda: Requires(gpu_memory=None, disk=None), description="memory and disk that must be free"
    )
    params: dict[
        ParameterName,
        Annotated[
            ParameterForm,
            ShortForm,
            any_of({"type": ["string", "number", "boolean", "null"]}, ParameterForm.model_json_schema()),
        ],
    ] = Field(default_factory=dict, description="parameters with their defaults")
    args: Arguments | None = Field(
        None,
        description="the arguments, as text or a list of words; else --name value for each parameter of a script",
    )
    env: dict[EnvironmentName, EnvironmentValue] = Field(
        default_factory=dict, description="environment variables, taken literally except for placeholders"
    )
    metrics: Annotated[
        MetricsForm,
        BeforeValidator(_expanded),
        any_of(
            {"enum": ["off", "auto", False]},
            MetricsForm.model_json_schema(),
            _ONE_SOURCE,
            _FORM_KEYS["sources"],
        ),
    ] = Field(
        default_factory=lambda: MetricsForm(loss=None, best=None),
        description="a source, a list of sources, or off; else gputui learns them from what it prints and writes",
    )
    checkpoints: Checkpoints | None = Field(None, description="where the script saves checkpoints, and how it resumes")
    alerts: Alerts = Field("standard", description="standard, off, or a mapping that changes alert rules for the run")
    recovery: Recovery = Field(
        default_factory=lambda: {"policy": "standard"},
        description="the name of a policy, off, or a mapping that changes one; else standard",
    )
    gates: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(
        default_factory=dict, description="thresholds of quality gates in reports, such as {gpu_utilization: 70}"
    )
    sinks: Sinks = Field(
        default_factory=dict, description="live exports: a format, a list of formats, or formats with their places"
    )
    roles: dict[str, str] = Field(default_factory=dict, description="parameters by role, such as {batch_size: bs}")
    grace: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = Field(
        30.0, description="seconds that the processes have after SIGTERM"
    )
    time: TimeLimit | None = Field(
        None, description="stop a run on this machine after so long, such as 8h; a target has a time of its own"
    )
    phases: list[PhaseForm] = Field(default_factory=list, description="parts of the run with parameters of their own")
    targets: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="other places to run, as in targets.yaml; --on NAME selects one"
    )
    notify: bool = Field(
        default=False,
        description="tell everybody in notify.yaml of its ends and recoveries, whatever they are told of else",
    )
    priority: Annotated[int, Field(ge=-1000, le=1000)] = Field(
        0, description="place in the queue, from -1000 to 1000; higher starts earlier"
    )


def is_literal(place: KeyPath) -> bool:
    """Return whether values at this place are text as written. In arguments and the environment
    ``on`` and ``1.10`` are text."""
    return (len(place) == 2 and place[0] in ("env", "args", "command")) or place[:2] == ("checkpoints", "resume")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a profile, for editors."""
    schema = with_summaries(ProfileForm.model_json_schema())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "gputui profile",
        "anyOf": [{"required": [key]} for key in ("script", "module", "command")],
    }
