"""The YAML of a profile as pydantic models: one key, one field."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema, model_validator

from gputui.profiles.devices import EXPECTED as EXPECTED_GPUS
from gputui.profiles.devices import Selection
from gputui.profiles.params import Parameter, ParameterError
from gputui.profiles.values import (
    Alerts,
    Bound,
    EnvironmentName,
    EnvironmentValue,
    Gpus,
    MetricPattern,
    ModuleName,
    OrOff,
    ParameterName,
    Processes,
    Recovery,
    ShortForm,
    Sinks,
    Size,
    Text,
    Value,
    Words,
    problem,
)
from gputui.profiles.yamldoc import Place


class Model(BaseModel):
    """Exactly the keys below, each of exactly its type."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class ParameterForm(Model):
    """A parameter with what a launch form shows and checks."""

    default: Value
    help: str | None = None
    choices: list[Value] | None = Field(None, min_length=1)
    min: Bound | None = None
    max: Bound | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> ParameterForm:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise problem("min is larger than max")
        if self.choices is not None and (self.min is not None or self.max is not None):
            raise problem("give choices, or min and max, not both")
        try:
            parameter = self.parameter("default")
            if self.default is not None:
                parameter.parse(self.default)
        except ParameterError as error:
            raise problem(str(error)) from error
        return self

    def parameter(self, name: str) -> Parameter:
        return Parameter(name, self.default, self.help, tuple(self.choices or ()), self.min, self.max)


class Requires(Model):
    """What must be there before the run starts."""

    gpu_memory: Size | None = Field(None, description="free memory that each GPU must have, such as 10GiB")
    disk: Size | None = Field(None, description="free disk space where the run's folder lies, such as 20GiB")


class Metrics(Model):
    """Where the run's metrics are read from."""

    source: Literal["jsonl", "csv", "hf", "stdout"]
    path: Text | None = Field(None, description="the file; may hold {run_dir} and, for hf, a glob")
    patterns: list[MetricPattern] | None = Field(
        None, min_length=1, description="for stdout: regular expressions with named groups"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Metrics:
        if self.source == "stdout":
            if self.patterns is None:
                raise problem("source stdout needs patterns")
            if self.path is not None:
                raise problem("source stdout has no path")
        elif self.patterns is not None:
            raise problem("only source stdout has patterns")
        elif self.source != "jsonl" and self.path is None:
            raise problem(f"source {self.source} needs a path")
        return self


class Checkpoints(Model):
    """Where checkpoints appear, and how a run is resumed from one."""

    dir: Text = Field("{run_dir}/checkpoints", description="their folder")
    pattern: Text = Field(description="a glob of their file names, such as step_*.pt")
    resume: Words = Field(
        default_factory=list, description="arguments added when resuming, with {checkpoint}; may be left out"
    )


class ProfileForm(Model):
    """A profile: how an existing training script is started, watched and recovered."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")] | None = Field(
        None, description="what runs are called after; the file's name when left out"
    )
    description: str | None = Field(None, description="one sentence for lists and the launch page")
    launcher: Literal["torchrun", "python", "command"] = Field(
        "torchrun", description="torchrun, python, or command for anything else"
    )
    script: Text | None = Field(None, description="the script, relative to the profile's folder")
    module: ModuleName | None = Field(None, description="a module instead of a script, as with python -m")
    command: Annotated[Words, Field(min_length=1)] | None = Field(
        None, description="the whole command, for launcher command"
    )
    python: Text | None = Field(None, description="the interpreter of the training environment")
    workdir: Text | None = Field(
        None, description="the working directory, relative to the profile's folder; may begin with {run_dir}"
    )
    gpus: Gpus = Field(
        Selection(count=1), description=EXPECTED_GPUS + "; 0 for the CPU", json_schema_extra={"default": 1}
    )
    min_gpus: Annotated[int, Field(ge=1, le=256)] | None = Field(
        None, description="with how few GPUs recovery may go on when others fail; not fewer if left out"
    )
    nproc: Processes = Field("gpus", description='processes of torchrun; "gpus" is one for each GPU')
    visible: Literal["uuid", "index"] = Field("uuid", description="what CUDA_VISIBLE_DEVICES holds")
    requires: Requires = Field(
        default_factory=lambda: Requires(gpu_memory=None, disk=None), description="memory and disk that must be free"
    )
    params: dict[
        ParameterName,
        Annotated[
            ParameterForm,
            ShortForm,
            WithJsonSchema(
                {"anyOf": [{"type": ["string", "number", "boolean", "null"]}, ParameterForm.model_json_schema()]}
            ),
        ],
    ] = Field(default_factory=dict, description="parameters with their defaults")
    args: Words | None = Field(None, description="the script's arguments; --key value for each parameter if left out")
    env: dict[EnvironmentName, EnvironmentValue] = Field(
        default_factory=dict, description="environment variables, taken as written"
    )
    metrics: Annotated[
        Metrics | None,
        OrOff,
        WithJsonSchema({"anyOf": [{"enum": ["off", False]}, Metrics.model_json_schema()]}),
    ] = Field(
        Metrics(source="jsonl", path="{run_dir}/metrics.jsonl", patterns=None),
        description="where metrics come from, or off",
    )
    checkpoints: Checkpoints | None = Field(None, description="where checkpoints appear and how to resume")
    alerts: Alerts = Field("standard", description="standard, off, or a mapping that changes rules")
    recovery: Recovery = Field(
        default_factory=lambda: {"policy": "standard"},
        description="the name of a policy, off, or a mapping that changes one",
    )
    gates: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(
        default_factory=dict, description="thresholds of quality gates by their names, for reports"
    )
    sinks: Sinks = Field(
        default_factory=dict, description="other tools that get the run's metrics while it lives, and where"
    )
    roles: dict[str, str] = Field(default_factory=dict, description="which parameter recovery may change as what")
    grace: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = Field(
        30.0, description="seconds that a stop waits for the processes before it kills them"
    )
    priority: Annotated[int, Field(ge=-1000, le=1000)] = Field(
        0, description="its place in the queue: a higher one starts earlier"
    )


def valid_keys(place: Place) -> list[str]:
    """The keys that the mapping at ``place`` may hold; empty where they are free."""
    models: dict[object, type[Model]] = {"requires": Requires, "metrics": Metrics, "checkpoints": Checkpoints}
    if not place:
        return list(ProfileForm.model_fields)
    if place[0] == "params" and len(place) == 2:
        return list(ParameterForm.model_fields)
    return list(models[place[0]].model_fields) if place[0] in models and len(place) == 1 else []


def is_literal(place: Place) -> bool:
    """Places whose values are text as written: arguments and the environment, where ``on`` and ``1.10`` mean
    themselves."""
    return (len(place) == 2 and place[0] in ("env", "args", "command")) or place[:2] == ("checkpoints", "resume")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a profile, for editors."""
    schema = ProfileForm.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "gputui profile",
        "anyOf": [{"required": [key]} for key in ("script", "module", "command")],
    }
