"""The YAML of a study as pydantic models: one key, one field."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, WithJsonSchema, model_validator

from gputui.profiles.values import Bound, ParameterName, Size, Text, Value
from gputui.studies.spec import PRIORITY, RUNGS, DimensionKind, Direction, PrunerKind, SamplerKind
from gputui.yaml_forms.forms import Model, expected, problem

_DURATION = re.compile(r"(\d{1,6}(?:\.\d+)?) ?(s|m|h|d)")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MEAN = re.compile(r"mean of ([1-9]\d{0,4})")
MOST_POINTS = 10_000


def parse_duration(text: str) -> float | None:
    """``90s``, ``30m``, ``10h`` or ``2d`` in seconds, or None."""
    match = _DURATION.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _UNITS[match[2]]


def _duration(given: object) -> float:
    seconds = parse_duration(given) if isinstance(given, str) else None
    if not seconds:
        raise expected("a time such as 30m, 10h or 2d")
    return seconds


def _over(given: object) -> tuple[str, int]:
    if given in ("best", "last"):
        return str(given), 1
    match = _MEAN.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        raise expected("best, last, or mean of a number of values such as mean of 5")
    return "mean", int(match[1])


def _length(given: object) -> str | float:
    if isinstance(given, str) and given:
        return given
    if isinstance(given, (int, float)) and not isinstance(given, bool) and math.isfinite(given) and given > 0:
        return given
    raise expected("a number greater than 0, or the name of the parameter that is it")


def _by_kind(given: object) -> object:
    return {"kind": given} if isinstance(given, str) else {"kind": "none"} if given is False else given


def _dimension(given: object) -> object:
    """The short form ``lr: [0.1, 0.01]`` as the long one."""
    return {"type": "choice", "values": given} if isinstance(given, list) else given


def _objectives(given: object) -> object:
    return [given] if isinstance(given, dict) else given


def _positive(given: float) -> float:
    if not given > 0:
        raise expected("a number greater than 0")
    return given


Positive = Annotated[Bound, AfterValidator(_positive)]
Count = Annotated[int, Field(ge=1, le=100_000)]


class DimensionForm(Model):
    """What values a tuned parameter may have."""

    type: DimensionKind
    min: Bound | None = None
    max: Bound | None = None
    log: bool = Field(False, description="draw on a logarithmic scale")
    step: Positive | None = Field(None, description="draw multiples of it above min")
    values: list[Value] | None = Field(None, min_length=1, description="for choice: the values")

    @model_validator(mode="after")
    def _is_consistent(self) -> DimensionForm:
        if self.type == "choice":
            if self.values is None:
                raise problem("choice needs values")
            if (self.min, self.max, self.step) != (None, None, None) or self.log:
                raise problem("choice has values only")
            if len({repr(value) for value in self.values}) < len(self.values):
                raise problem("a value is given twice")
            return self
        if self.values is not None:
            raise problem(f"{self.type} has min and max; for a list of values write type: choice")
        if self.min is None or self.max is None:
            raise problem(f"{self.type} needs min and max")
        if not self.min < self.max:
            raise problem("min is not smaller than max")
        if self.log and self.min <= 0:
            raise problem("log needs a min greater than 0")
        if self.log and self.step is not None:
            raise problem("give log or step, not both")
        if self.type == "int" and any(isinstance(one, float) for one in (self.min, self.max, self.step)):
            raise problem("int has whole numbers only")
        return self


class ObjectiveForm(Model):
    """A metric of the runs that is to become small or large."""

    metric: Text
    direction: Direction = "minimize"
    over: Annotated[
        Any, BeforeValidator(_over), WithJsonSchema({"type": "string", "pattern": "^(best|last|mean of [0-9]+)$"})
    ] = Field(("best", 1), description="which of its values counts: best, last, or mean of 5")


class SamplerForm(Model):
    """How points are chosen."""

    kind: SamplerKind
    startup: Annotated[int, Field(ge=1, le=10_000)] | None = Field(None, description="points drawn at random first")


class PrunerForm(Model):
    """When a trial is cut short."""

    kind: PrunerKind
    by: Text = Field("step", description="what the rungs count: step, or a metric such as epoch")
    length: Annotated[
        Any, BeforeValidator(_length), WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]})
    ] = Field(None, description="how much of that a full run is, or the parameter that says so")
    rungs: Annotated[int, Field(ge=1, le=1000)] = Field(RUNGS, description="in how many parts a full run is compared")
    startup: Annotated[int, Field(ge=0, le=10_000)] = 5
    warmup: Annotated[int, Field(ge=0, le=1000)] = 0
    percentile: Annotated[Positive, Field(le=100)] = 50.0
    eta: Annotated[int, Field(ge=2, le=10)] = 3
    patience: Count = 5

    @model_validator(mode="after")
    def _is_consistent(self) -> PrunerForm:
        if self.kind != "none" and self.length is None:
            raise problem(f"pruner {self.kind} needs length: how many steps a full run has")
        return self


class ConstraintsForm(Model):
    """What a point must keep."""

    memory: Size | None = Field(None, description="GPU memory of a rank at most, such as 20GiB (metric gpu_mem_peak)")
    step_time: Positive | None = Field(None, description="seconds of a step at most (metric step_time)")


class BudgetForm(Model):
    """When the study is over."""

    trials: Count | None = None
    gpu_hours: Positive | None = None
    wall: Annotated[float, BeforeValidator(_duration), WithJsonSchema({"type": "string"})] | None = Field(
        None, description="a time such as 30m, 10h or 2d"
    )


class PbtForm(Model):
    """Population-based training: bad members go on from good ones with other parameters."""

    members: Annotated[int, Field(ge=2, le=256)]
    every: Count = Field(description="steps between two comparisons")
    quantile: Annotated[Positive, Field(le=0.5)] = 0.25
    resample: Annotated[Bound, Field(ge=0, le=1)] = 0.25
    factors: list[Positive] = Field(default_factory=lambda: [0.8, 1.2], min_length=1)


class StudyForm(Model):
    """A study: many runs of one profile to find good parameters."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")] | None = Field(
        None, description="what it is called; the file's name when left out"
    )
    description: str | None = Field(None, description="one sentence for lists")
    profile: Text = Field(description="the profile of every trial: a name, or a path from this file's folder")
    params: dict[str, Value] = Field(default_factory=dict, description="values that every trial has")
    space: Annotated[
        dict[ParameterName, Annotated[DimensionForm, BeforeValidator(_dimension), WithJsonSchema(
            {"anyOf": [{"type": "array", "minItems": 1}, DimensionForm.model_json_schema()]}
        )]],
        Field(min_length=1, description="the parameters that are tuned"),
    ]  # fmt: skip
    objective: Annotated[
        list[ObjectiveForm],
        BeforeValidator(_objectives),
        Field(min_length=1, max_length=4),
        WithJsonSchema(
            {
                "anyOf": [
                    ObjectiveForm.model_json_schema(),
                    {"type": "array", "minItems": 1, "maxItems": 4, "items": ObjectiveForm.model_json_schema()},
                ]
            }
        ),
    ] = Field(description="what is to become small or large; a list for several")
    sampler: Annotated[
        SamplerForm,
        BeforeValidator(_by_kind),
        WithJsonSchema({"anyOf": [{"type": "string"}, SamplerForm.model_json_schema()]}),
    ] = Field(default_factory=lambda: SamplerForm(kind="tpe", startup=None), description="how points are chosen")
    pruner: Annotated[
        PrunerForm,
        BeforeValidator(_by_kind),
        WithJsonSchema({"anyOf": [{"enum": ["none", False]}, PrunerForm.model_json_schema()]}),
    ] = Field(
        default_factory=lambda: PrunerForm.model_validate({"kind": "none"}), description="when a trial is cut short"
    )
    constraints: ConstraintsForm = Field(default_factory=lambda: ConstraintsForm(memory=None, step_time=None))
    budget: BudgetForm = Field(default_factory=lambda: BudgetForm(trials=None, gpu_hours=None, wall=None))
    gpus_per_trial: Annotated[int, Field(ge=1, le=256)] | None = Field(
        None, description="GPUs of each trial; as the profile says if left out"
    )
    trials_per_gpu: Literal[1] = Field(1, description="trials that share a GPU; one so far")
    parallel: Annotated[int, Field(ge=1, le=256)] | None = Field(
        None, description="trials at a time; as many as fit if left out"
    )
    priority: Annotated[int, Field(ge=-1000, le=-1)] = Field(
        PRIORITY, description="the trials' place in the queue, behind runs that a person launches"
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    warm_start: Annotated[int, Field(ge=0, le=1000)] = Field(
        0, description="how many earlier runs of the profile the sampler learns from"
    )
    pbt: PbtForm | None = Field(None, description="population-based training instead of a sampler and a pruner")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a study, for editors."""
    schema = StudyForm.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "gputui study"}
