"""The YAML of a study as pydantic models, one field for each key, with the names of
`gputui.studies.spec`."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, get_args

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from gputui.core.yaml_forms.forms import Model, Name, expected, problem
from gputui.core.yaml_forms.quantities import parse_duration
from gputui.profiles.values import Bound, ParameterName, Size, Text, Value
from gputui.studies.spec import (
    PRIORITY,
    DimensionKind,
    Direction,
    PbtSpec,
    PrunerKind,
    PrunerSpec,
    SamplerKind,
    SamplerSpec,
    StudySpec,
)

_MEAN = re.compile(r"mean of ([1-9]\d{0,4})")
_PRUNER = PrunerSpec()
_PBT = PbtSpec(members=2, every=1)
"""Instances with the defaults of the keys."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a study, for editors."""
    schema = StudyForm.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "gputui study"}


# --- single values ----------------------------------------------------------------------------------------------------


def _positive(given: float) -> float:
    if not given > 0:
        raise expected("a number greater than 0")
    return given


def _duration(given: object) -> float:
    seconds = parse_duration(given) if isinstance(given, str) else None
    if not seconds:
        raise expected("a time such as 30m, 10h or 2d")
    return seconds


def _over(given: object) -> tuple[str, int]:
    """Which values of a metric count, and their number."""
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


def _wanted(given: object) -> object:
    """Expand the short form ``optimizer: sgd``."""
    return given if isinstance(given, list) else [given]


Positive = Annotated[Bound, AfterValidator(_positive)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Duration = Annotated[float, BeforeValidator(_duration), WithJsonSchema({"type": "string"})]
Over = Annotated[
    Any, BeforeValidator(_over), WithJsonSchema({"type": "string", "pattern": "^(best|last|mean of [0-9]+)$"})
]
Wanted = Annotated[
    list[Value],
    BeforeValidator(_wanted),
    Field(min_length=1),
    WithJsonSchema({"type": ["array", "string", "number", "boolean"]}),
]
Length = Annotated[Any, BeforeValidator(_length), WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]})]


# --- sections ---------------------------------------------------------------------------------------------------------


class DimensionForm(Model):
    """What values a tuned parameter may have."""

    type: DimensionKind = Field(description="float and int have a range, choice has a list of values")
    min: Bound | None = Field(None, description="the smallest value")
    max: Bound | None = Field(None, description="the largest value")
    log: bool = Field(False, description="draw on a logarithmic scale")
    step: Positive | None = Field(None, description="draw multiples of it above min")
    values: list[Value] | None = Field(None, min_length=1, description="for choice: the values")
    when: dict[ParameterName, Wanted] = Field(
        default_factory=dict, description="only points that have these values of parameters above it have it"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> DimensionForm:
        if self.type == "choice":
            self._check_choice()
        else:
            self._check_range()
        return self

    def _check_choice(self) -> None:
        if self.values is None:
            raise problem("choice needs values")
        if (self.min, self.max, self.step) != (None, None, None) or self.log:
            raise problem("choice has values, and no range")
        if len({repr(value) for value in self.values}) < len(self.values):
            raise problem("a value is given twice")

    def _check_range(self) -> None:
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


class ObjectiveForm(Model):
    """A metric of the runs that is to become small or large."""

    metric: Text = Field(description="the metric's name in the run's files")
    direction: Direction = Field("minimize", description="whether small or large values are good")
    over: Over = Field(
        ("best", 1),
        description="which of its values counts: best, last, or mean of 5",
        json_schema_extra={"default": "best"},
    )


class SamplerForm(Model):
    """How points are chosen."""

    kind: SamplerKind = Field(description="grid is gputui's own, the others are Optuna's")
    startup: Annotated[int, Field(ge=1, le=10_000)] | None = Field(None, description="points drawn at random first")


class PrunerForm(Model):
    """When a trial is cut short."""

    kind: PrunerKind = Field(description="what a trial is compared with at the end of a rung")
    by: Text = Field(_PRUNER.by, description="what the rungs count: step, or a metric such as epoch")
    length: Length = Field(None, description="how much of that a full run is, or the parameter that says so")
    rungs: Annotated[int, Field(ge=1, le=1000)] = Field(
        _PRUNER.rungs, description="in how many parts a full run is compared"
    )
    startup: Annotated[int, Field(ge=0, le=10_000)] = Field(
        _PRUNER.startup, description="so many trials are never cut short"
    )
    warmup: Annotated[int, Field(ge=0, le=1000)] = Field(
        _PRUNER.warmup, description="no trial is cut short in its first so many rungs"
    )
    percentile: Annotated[Positive, Field(le=100)] = Field(
        _PRUNER.percentile, description="for percentile: the share of trials that continues, in percent"
    )
    eta: Annotated[int, Field(ge=2, le=10)] = Field(
        _PRUNER.eta, description="for halving and hyperband: one of so many trials continues"
    )
    patience: Count = Field(_PRUNER.patience, description="for patient: rungs without a better value")

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

    trials: Count | None = Field(None, description="so many trials")
    gpu_hours: Positive | None = Field(None, description="so many hours on a GPU, all trials together")
    wall: Duration | None = Field(None, description="a time such as 30m, 10h or 2d")


class PbtForm(Model):
    """Population-based training: bad members continue from good ones with other parameters."""

    members: Annotated[int, Field(ge=2, le=256)] = Field(description="trials of the population")
    every: Count = Field(description="steps between two comparisons")
    quantile: Annotated[Positive, Field(le=0.5)] = Field(
        _PBT.quantile, description="the share of members that continues from a better one"
    )
    resample: Annotated[Bound, Field(ge=0, le=1)] = Field(
        _PBT.resample, description="how often a parameter is drawn again; else it is multiplied by a factor"
    )
    factors: list[Positive] = Field(
        default_factory=lambda: list(_PBT.factors), min_length=1, description="what a parameter is multiplied by"
    )
    length: Length = Field(
        None, description="steps of a full run, or the parameter that says so; steps or max_steps if left out"
    )


# --- the file ---------------------------------------------------------------------------------------------------------


def _by_kind(given: object) -> object:
    """Expand the short form ``pruner: median``; ``off`` is none."""
    return {"kind": given} if isinstance(given, str) else {"kind": "none"} if given is False else given


def _dimension(given: object) -> object:
    """Expand the short form ``lr: [0.1, 0.01]``."""
    return {"type": "choice", "values": given} if isinstance(given, list) else given


def _objectives(given: object) -> object:
    """Expand a single objective to a list of one."""
    if not isinstance(given, (dict, list)):
        raise expected("a metric with its direction such as {metric: loss, direction: minimize}")
    return [given] if isinstance(given, dict) else given


def _or_short(form: type[Model], *short: dict[str, Any]) -> WithJsonSchema:
    """The JSON Schema of a section with short forms."""
    return WithJsonSchema({"anyOf": [*short, form.model_json_schema()]})


_MAX_OBJECTIVES = 4

SpaceValue = Annotated[
    DimensionForm, BeforeValidator(_dimension), _or_short(DimensionForm, {"type": "array", "minItems": 1})
]
Objectives = Annotated[
    list[ObjectiveForm],
    BeforeValidator(_objectives),
    Field(min_length=1, max_length=_MAX_OBJECTIVES),
    _or_short(
        ObjectiveForm,
        {"type": "array", "minItems": 1, "maxItems": _MAX_OBJECTIVES, "items": ObjectiveForm.model_json_schema()},
    ),
]
Sampler = Annotated[
    SamplerForm, BeforeValidator(_by_kind), _or_short(SamplerForm, {"enum": list(get_args(SamplerKind))})
]
Pruner = Annotated[PrunerForm, BeforeValidator(_by_kind), _or_short(PrunerForm, {"enum": ["none", False]})]


class StudyForm(Model):
    """A study: many runs of one profile to find good parameters."""

    name: Name | None = Field(None, description="what it is called; the file's name when left out")
    description: str | None = Field(None, description="one sentence for lists")
    profile: Text = Field(description="the profile of every trial: a name, or a path from this file's folder")
    params: dict[str, Value] = Field(default_factory=dict, description="values that every trial has")
    space: dict[ParameterName, SpaceValue] = Field(min_length=1, description="the parameters that are tuned")
    objective: Objectives = Field(description="what is to become small or large; a list for several")
    sampler: Sampler = Field(
        SamplerForm.model_validate({"kind": SamplerSpec().kind}),
        description="how points are chosen",
    )
    pruner: Pruner = Field(
        PrunerForm.model_validate({"kind": _PRUNER.kind}),
        description="when a trial is cut short",
    )
    constraints: ConstraintsForm = Field(ConstraintsForm.model_validate({}), description="what a point must keep")
    budget: BudgetForm = Field(BudgetForm.model_validate({}), description="when the study is over")
    stop_after: Count | None = Field(None, description="it ends once so many trials in a row bring nothing better")
    gpus_per_trial: Annotated[int, Field(ge=1, le=256)] | None = Field(
        None, description="GPUs of each trial; as the profile says if left out"
    )
    trials_per_gpu: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="of trials with one GPU so many share it at most, where their measured memory allows"
    )
    parallel: Annotated[int, Field(ge=1, le=256)] | None = Field(
        None, description="trials at a time; as many as fit if left out"
    )
    priority: Annotated[int, Field(ge=-1000, le=-1)] = Field(
        PRIORITY, description="the trials' place in the queue, behind runs that a person launches"
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(0, description="of everything that is drawn at random")
    warm_start: Annotated[int, Field(ge=0, le=1000)] = Field(
        0, description="how many earlier runs of the profile the sampler learns from"
    )
    rerun: Annotated[int, Field(ge=0, le=100)] = Field(
        2, description="of so many best trials, those that were cut short run to the end once the budget is used"
    )
    pbt: PbtForm | None = Field(None, description="population-based training instead of a sampler and a pruner")
    target: Text | None = Field(None, description="where every trial runs; needs parallel. This machine if left out")

    def spec(self, **resolved: Any) -> StudySpec:
        """The study; ``resolved`` has what the profile and the file's name decide."""
        given = self.model_dump(exclude={"description", "objective", "space", "target"})
        given["space"] = [
            {"name": name, **one.model_dump(), "values": one.values or ()} for name, one in self.space.items()
        ]
        given["objectives"] = [
            {"metric": one.metric, "direction": one.direction, "over": one.over[0], "count": one.over[1]}
            for one in self.objective
        ]
        if self.pruner.kind == "none":
            given["rerun"] = 0
        return msgspec.convert({**given, **resolved}, StudySpec)
