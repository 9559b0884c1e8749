"""A study: the form of its file, and the record that the screen, the agent and the study's process
work with."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Literal, get_args

import msgspec

from gputui.core.yaml_forms.problems import NAME_PATTERN, ExpectedError
from gputui.core.yaml_forms.quantities import is_number
from gputui.runs.spec import Scalar
from gputui.store.studies import StudyRecord
from gputui.studies.keys import (
    A_NAME,
    LIST,
    NULL,
    OVER,
    Choices,
    Duration,
    Factors,
    JsonSchema,
    Length,
    Number,
    OneOrMore,
    Over,
    Positive,
    Reads,
    Section,
    Size,
    Switch,
    Text,
    Value,
    key,
    or_short,
)

DimensionKind = Literal["float", "int", "choice"]
Direction = Literal["minimize", "maximize"]
SamplerKind = Literal["grid", "random", "tpe", "cmaes", "qmc", "gp", "nsga2"]
PrunerKind = Literal["none", "median", "percentile", "halving", "hyperband", "patient"]

MAX_POINTS = 10_000
"""The largest grid."""
MAX_OBJECTIVES = 4  # with more, nearly every trial is on the Pareto front
NAME_KEY = "[key]"
"""The name of a dimension while a file is checked; in places of errors it means the key itself."""


# --- short forms ------------------------------------------------------------------------------------------------------

_RANGE = ("min", "max", "step")
_GIVEN = {"not": NULL}
_DIMENSION_RULES = [
    {
        "if": {"properties": {"type": {"const": "choice"}}},
        "then": {"required": ["values"], "properties": {**dict.fromkeys(_RANGE, NULL), "log": {"const": False}}},
        "else": {"required": ["min", "max"], "properties": {"min": _GIVEN, "max": _GIVEN, "values": False}},
    },
    {
        "if": {"properties": {"type": {"const": "int"}}},
        "then": {"properties": {limit: {"multipleOf": 1} for limit in _RANGE}},
    },
    {
        "if": {"required": ["log"], "properties": {"log": {"const": True}}},
        "then": {"properties": {"min": {"exclusiveMinimum": 0}, "step": NULL}},
    },
]
_PRUNER_RULE = {
    "if": {"properties": {"kind": {"enum": ["none"]}}},
    "else": {"required": ["length"], "properties": {"length": _GIVEN}},
}

_NEEDS = {"cmaes": ("cmaes",), "qmc": ("scipy",), "gp": ("torch", "scipy")}
"""Libraries that samplers need beside Optuna."""


def _by_kind(form: object) -> object:
    """Expand the short form ``pruner: median``; ``off`` is none."""
    if isinstance(form, str):
        return {"kind": form}
    if form is False:
        return {"kind": "none"}
    return form


def _dimensions(space: object) -> object:
    """Give each dimension its name, and expand the short form ``lr: [0.1, 0.01]``."""
    if not isinstance(space, dict):
        raise ExpectedError("a mapping (name: value)")
    if not space:
        raise ExpectedError("at least 1 of them")
    return [_named_form(name, form) for name, form in space.items()]


def _named_form(name: str, form: object) -> object:
    """The form of a dimension with its name; a form of another type is refused later."""
    if isinstance(form, list):
        return {"type": "choice", "values": form, NAME_KEY: name}
    if isinstance(form, dict):
        return {**form, NAME_KEY: name}
    return form


def _dimension(form: Any) -> object:
    """Refuse 1.0 for 1 before it becomes a float, as limits are stored."""
    is_int = isinstance(form, dict) and form.get("type") == "int"
    if is_int and any(isinstance(form.get(limit), float) for limit in _RANGE):
        raise ValueError("int has whole numbers only")
    return form


def _objectives(form: object) -> object:
    """Expand a single objective to a list of one."""
    if not isinstance(form, (dict, list)):
        raise ExpectedError("a metric with its direction such as {metric: loss, direction: minimize}")
    if isinstance(form, list) and not 1 <= len(form) <= MAX_OBJECTIVES:
        raise ExpectedError(f"1 to {MAX_OBJECTIVES} of them")
    if isinstance(form, dict):
        return [form]
    return form


# --- sections ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dimension(Section):
    """A tuned parameter: from ``low`` to ``high`` (inclusive), or one of ``choices``.

    Attributes:
        low: the smallest value; None for a choice.
        high: the largest value; None for a choice.
        step: the distance of values; None where every value of the range is one.
        choices: the values of a choice; empty for a range.
        when: earlier parameters with values; without one of each this parameter is left out.
    """

    name: str = key("the parameter", name=NAME_KEY)
    kind: DimensionKind = key("float and int have a range, choice has a list", name="type")
    low: Number | None = key("smallest value", None, name="min")
    high: Number | None = key("largest value", None, name="max")
    log: Switch = key("logarithmic scale", False)
    step: Positive | None = key("distance of values, from min on", None)
    choices: Choices = key("values of a choice; `NAME: [a, b]` is short for it", (), name="values")
    when: Mapping[str, OneOrMore] = key("applies only with these values of parameters above it", {})

    def __post_init__(self) -> None:
        if self.kind == "choice":
            problem = self._choice_problem()
        else:
            problem = self._range_problem()
        if problem:
            raise ValueError(problem)

    def _choice_problem(self) -> str | None:
        if not self.choices:
            return "choice needs values"
        if (self.low, self.high, self.step) != (None, None, None) or self.log:
            return "choice has values, and no range"
        is_twice = any(_is_among(value, self.choices[:index]) for index, value in enumerate(self.choices))
        if is_twice:
            return "a value is given twice"
        return None

    def _range_problem(self) -> str | None:
        if self.choices:
            return f"{self.kind} has min and max; for a list of values write type: choice"
        if self.low is None or self.high is None:
            return f"{self.kind} needs min and max"
        if not self.low < self.high:
            return "min is not smaller than max"
        if self.log and self.low <= 0:
            return "log needs a min greater than 0"
        if self.log and self.step is not None:
            return "give log or step, not both"
        return None

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest number."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def holds(self, value: Scalar) -> bool:
        """Return whether a value lies in the dimension."""
        if self.kind == "choice":
            return _is_among(value, self.choices)
        if not is_number(value):
            return False
        low, high = self.bounds
        if (self.kind == "int" and value != int(value)) or not low <= value <= high:
            return False
        steps = (value - low) / (self.step or 1)
        return (self.step is None and self.kind == "float") or self.log or abs(steps - round(steps)) < 1e-9

    def rounded(self, value: float, digits: int) -> float:
        """A value that the dimension takes, with fewer digits where it takes that, too."""
        short = float(f"{value:.{digits}g}")
        if self.holds(short):
            return short
        return min(max(value, self.bounds[0]), self.bounds[1])

    def applies(self, point: Mapping[str, Scalar]) -> bool:
        """Return whether a point with these earlier parameters has this one."""
        return all(name in point and _is_among(point[name], choices) for name, choices in self.when.items())

    def grid(self) -> tuple[Scalar, ...] | None:
        """The values in order, at most one more than a grid may have; None if they cannot be
        counted."""
        if self.kind == "choice":
            return self.choices
        step = self.step
        if step is None and self.kind == "int" and not self.log:
            step = 1
        if step is None:
            return None
        low, high = self.bounds
        # Rounding must not exclude the upper end.
        count = min(math.floor((high - low) / step + 1e-9), MAX_POINTS) + 1
        if self.kind == "int":
            return tuple(int(low + step * index) for index in range(count))
        return tuple(self.rounded(low + step * index, 12) for index in range(count))


def _is_among(value: Scalar, values: tuple[Scalar, ...]) -> bool:
    """Return whether ``values`` has a value; True is not 1."""
    return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in values)


@dataclass(frozen=True)
class Objective(Section):
    """A metric of the runs that is to become small or large."""

    metric: Text = key("metric to compare", min_length=1, max_length=4096)
    direction: Direction = key("what is better", "minimize")
    over: Over = key("value that counts: best, last, or `mean of 5` (the last five)", "best")

    @property
    def mean_of(self) -> int | None:
        """The number of last values that make the mean; None where the best or the last one
        counts."""
        match = OVER.fullmatch(self.over)
        if match is not None and match[1]:
            return int(match[1])
        return None

    @property
    def sign(self) -> int:
        """The factor of values with which small ones are good."""
        if self.direction == "minimize":
            return 1
        return -1

    def is_better(self, value: float, rival: float) -> bool:
        return self.sign * value < self.sign * rival


@dataclass(frozen=True)
class SamplerSpec(Section):
    """The method that chooses points. ``startup`` is the sampler's default if None."""

    kind: SamplerKind = key("method; `sampler: NAME` is short for it")
    startup: int | None = key("random points before tpe, gp, cmaes learns", None, ge=1, le=10_000)


@dataclass(frozen=True)
class PrunerSpec(Section):
    """The rule that cuts trials short. By default Hyperband's smallest share of a full run is
    1/27.

    Attributes:
        length: the length of a full run in units of ``by``; None only without a pruner.
        rungs: the comparisons in a full run.
        percentile: the percentage of trials that continue.
    """

    kind: PrunerKind = key("method; `patient` compares a trial with itself")
    by: Text = key("unit of length: step, or a metric such as epoch", "step", min_length=1, max_length=4096)
    length: Length | None = key("length of a full run, a number or parameter; required", None)
    rungs: int = key("comparisons in a full run", 27, ge=1, le=1000)
    startup: int = key("median, percentile: trials before the first is pruned", 5, ge=0, le=10_000)
    warmup: int = key("median, percentile: rungs before a trial is pruned", 0, ge=0, le=1000)
    percentile: Positive = key("percentile: percent of trials that continue", 50.0, le=100)
    eta: int = key("halving, hyperband: one of so many continues", 3, ge=2, le=10)
    patience: int = key("patient: rungs without a better value", 5, ge=1, le=100_000)

    def __post_init__(self) -> None:
        if self.kind != "none" and self.length is None:
            raise ValueError(f"pruner {self.kind} needs length: how many steps a full run has")


@dataclass(frozen=True)
class Constraints(Section):
    """The limits of a feasible point.

    Attributes:
        memory_bytes: the most GPU memory of a rank; None for no limit.
        step_seconds: the longest step; None for no limit.
    """

    memory_bytes: Size | None = key("most GPU memory of a rank: 20GiB (metric gpu_mem_peak)", None, name="memory")
    step_seconds: Positive | None = key("most seconds of a step (metric step_time)", None, name="step_time")

    @property
    def count(self) -> int:
        return (self.memory_bytes is not None) + (self.step_seconds is not None)


@dataclass(frozen=True)
class Budget(Section):
    """The limits of a study. None is unlimited."""

    trials: int | None = key("number of trials", None, ge=1, le=100_000)
    gpu_hours: Positive | None = key("GPU-hours of all trials", None)
    wall_seconds: Duration | None = key("running time, such as 30m, 10h, 2d; pauses do not count", None, name="wall")


@dataclass(frozen=True)
class PbtSpec(Section):
    """Population-based training: bad members continue from good ones with other parameters.

    Attributes:
        quantile: the share of members that continue from better ones, 0 to 0.5.
        resample: the probability that a parameter is drawn anew, 0 to 1.
        length: the steps of a full run; None if unknown.
    """

    members: int = key("trials of the population", ge=2, le=256)
    every: int = key("steps between comparisons", ge=1, le=100_000)
    quantile: Positive = key("share that continues from better members", 0.25, le=0.5)
    resample: Number = key("probability of drawing a parameter anew", 0.25, ge=0, le=1)
    factors: Factors = key("other parameters are multiplied by one; [0.8, 1.2] if left out", (0.8, 1.2))
    length: Length | None = key("steps of a full run, a number or parameter; steps or max_steps if left out", None)


# --- the file ---------------------------------------------------------------------------------------------------------


def _space_schema(base: JsonSchema) -> JsonSchema:
    of_one = {"anyOf": [{**LIST, "uniqueItems": True}, {**base["items"], "allOf": _DIMENSION_RULES}]}
    return {"type": "object", "minProperties": 1, "additionalProperties": of_one}


_SPACE = Reads(_dimensions, _space_schema)
_OBJECTIVES = Reads(
    _objectives, lambda base: {"anyOf": [base["items"], {**base, "minItems": 1, "maxItems": MAX_OBJECTIVES}]}
)
_SAMPLER = Reads(_by_kind, or_short({"enum": list(get_args(SamplerKind))}))
_PRUNER = Reads(_by_kind, lambda base: {"anyOf": [{"enum": ["none", False]}, {**base, **_PRUNER_RULE}]})
_TARGET = Reads(lambda form: form, lambda _: A_NAME)


@dataclass(frozen=True)
class StudySpec(Section):
    """Many runs of one profile to find good parameters. `gputui.studies.study_file` puts what the
    profile says in place of names of parameters, and the target in place of its name.

    Attributes:
        space: the tuned parameters, each after those that it depends on.
        objectives: what makes a trial good; with several, no trial is the best one.
        gpus_per_trial: the GPUs of a trial; 0 for none, or while the profile decides.
        trials_per_gpu: the most trials with one GPU that share it.
        parallel: the most trials at a time; None for as many as fit.
        stop_after: the number of trials in a row without a better value that ends the study; None
            for no such end.
        warm_start: the number of earlier runs that the sampler learns from.
        rerun: the number of best trials of which pruned ones run again to the end.
        pbt: population-based training instead of a sampler and a pruner; None without it.
        target: the settings of the target where the trials run; None for this machine.
    """

    name: str = key("the file's if left out", pattern=NAME_PATTERN)
    profile: Text = key("name, or path from this file's folder", min_length=1)
    space: Annotated[tuple[Annotated[Dimension, Reads(_dimension)], ...], _SPACE] = key("parameters to tune")
    objectives: Annotated[tuple[Objective, ...], _OBJECTIVES] = key(
        "what makes a trial good; up to 4 as a list", name="objective"
    )
    sampler: Annotated[SamplerSpec, _SAMPLER] = key("how points are chosen; tpe if left out", SamplerSpec("tpe"))
    pruner: Annotated[PrunerSpec, _PRUNER] = key("when a trial is cut short; none if left out", PrunerSpec("none"))
    constraints: Constraints = key("limits that make a point infeasible", Constraints())
    budget: Budget = key("when the study ends", Budget())
    stop_after: int | None = key("end after so many trials in a row without a better value", None, ge=1, le=100_000)
    params: Mapping[str, Value] = key("values of every trial", {})
    gpus_per_trial: int = key("GPUs of each trial; as the profile says if left out", 0, ge=1, le=256)
    trials_per_gpu: int = key("most one-GPU trials on a GPU, as memory allows", 1, ge=1, le=64)
    parallel: int | None = key("most trials at a time; as many as fit if left out", None, ge=1, le=256)
    priority: int = key("place in the queue; must be below 0", -10, ge=-1000, le=-1)
    seed: int = key("seed of all random choices", 0, ge=0, le=2**31 - 1)
    warm_start: int = key("earlier runs that the sampler learns from", 0, ge=0, le=1000)
    rerun: int = key("pruned trials among so many best run again to the end", 2, ge=0, le=100)
    pbt: PbtSpec | None = key("population-based training", None)
    target: Annotated[Mapping[str, Any], _TARGET] | None = key("target of every trial; this machine if left out", None)
    description: Text | None = key("one sentence for lists", None)

    @property
    def tuned(self) -> tuple[str, ...]:
        """The names of the tuned parameters."""
        return tuple(dimension.name for dimension in self.space)

    @property
    def is_grid(self) -> bool:
        return self.pbt is None and self.sampler.kind == "grid"

    @property
    def method(self) -> str:
        """The method that chooses points, in a word or two."""
        if self.pbt is None:
            return self.sampler.kind
        return "population-based training"

    @property
    def target_name(self) -> str | None:
        """The name of the target where its trials run; None for this machine."""
        if self.target is None:
            return None
        return str(self.target["name"])

    @property
    def wanted_trials(self) -> int | None:
        """The number of trials that the study will have; None if its budget counts something else."""
        if self.pbt is not None:
            return self.pbt.members
        if not self.is_grid:
            return self.budget.trials
        points = len(self.grid())
        return min(points, self.budget.trials or points)

    def dimensions_of(self, point: Mapping[str, Scalar]) -> list[Dimension]:
        """The parameters that a point has."""
        return [dimension for dimension in self.space if dimension.applies(point)]

    def has_point(self, point: Mapping[str, Scalar]) -> bool:
        """Return whether a point has the parameters that apply to it, with values of the space, and
        no others."""
        dimensions = self.dimensions_of(point)
        return point.keys() == {dimension.name for dimension in dimensions} and all(
            dimension.holds(point[dimension.name]) for dimension in dimensions
        )

    def grid(self) -> list[dict[str, Scalar]]:
        """Every point, the last parameter changing fastest; of a grid that is too large, one more
        than it may have."""
        return list(islice(_points(self.space, {}), MAX_POINTS + 1))

    def to_json(self) -> dict[str, Any]:
        shape: dict[str, Any] = msgspec.to_builtins(self)
        return shape


def _points(space: tuple[Dimension, ...], point: Mapping[str, Scalar]) -> Iterator[dict[str, Scalar]]:
    """The points that begin with ``point`` and have the parameters of ``space`` that apply to them."""
    if not space:
        yield dict(point)
        return
    dimension = space[0]
    rest = space[1:]
    if not dimension.applies(point):
        yield from _points(rest, point)
        return
    for value in dimension.grid() or ():
        yield from _points(rest, {**point, dimension.name: value})


def missing_library(spec: StudySpec) -> str | None:
    """The library that the study's sampler lacks, and the command that installs it, in one line;
    None if nothing is missing."""
    if spec.pbt is not None:
        return None
    missing = [name for name in _NEEDS.get(spec.sampler.kind, ()) if importlib.util.find_spec(name) is None]
    if missing:
        return f"the sampler {spec.sampler.kind} needs {missing[0]}; pip install {missing[0]}"
    return None


def study_spec(study: StudyRecord) -> StudySpec:
    """The specification of a stored study."""
    return msgspec.convert(json.loads(study.spec_json), StudySpec)
