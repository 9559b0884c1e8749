"""The specification of a study, frozen when it begins: space, objectives, sampler, pruner and
budget.

Plain data: the screen, the agent and the study's process do without pydantic.
`gputui.studies.schema` makes it.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gputui.runs.spec import Scalar
from gputui.store.studies import StudyRecord

DimensionKind = Literal["float", "int", "choice"]
Direction = Literal["minimize", "maximize"]
Over = Literal["best", "last", "mean"]
SamplerKind = Literal["grid", "random", "tpe", "cmaes", "qmc", "gp", "nsga2"]
PrunerKind = Literal["none", "median", "percentile", "halving", "hyperband", "patient"]

PRIORITY = -10
"""The default; a run that a person launches has 0."""
RUNGS = 27
"""The rungs of a full run, so that Hyperband's smallest share is 1/27."""
MAX_POINTS = 10_000
"""The largest grid."""


class Dimension(Struct, frozen=True, rename={"kind": "type", "low": "min", "high": "max", "choices": "values"}):
    """A tuned parameter: from ``low`` to ``high`` (inclusive), in steps or on a logarithmic scale;
    or one of ``choices``. Only points whose parameters in ``when`` have one of the values there
    have it."""

    name: str
    kind: DimensionKind
    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = None
    choices: tuple[Scalar, ...] = ()
    when: Mapping[str, tuple[Scalar, ...]] = msgspec.field(default_factory=dict)

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest number."""
        assert self.low is not None and self.high is not None
        return self.low, self.high

    def holds(self, value: Scalar) -> bool:
        """Whether a value lies in the dimension."""
        if self.kind == "choice":
            return _is_among(value, self.choices)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        low, high = self.bounds
        if (self.kind == "int" and value != int(value)) or not low <= value <= high:
            return False
        steps = (value - low) / (self.step or 1)
        return (self.step is None and self.kind == "float") or self.log or abs(steps - round(steps)) < 1e-9

    def applies(self, point: Mapping[str, Scalar]) -> bool:
        """Whether a point with these earlier parameters has this one."""
        return all(name in point and _is_among(point[name], wanted) for name, wanted in self.when.items())

    def grid(self) -> tuple[Scalar, ...] | None:
        """The values in order, at most one more than a grid may have; None if they cannot be
        counted."""
        if self.kind == "choice":
            return self.choices
        step = self.step if self.step is not None else 1 if self.kind == "int" and not self.log else None
        if step is None:
            return None
        low, high = self.bounds
        # Rounding must not exclude the upper end.
        count = min(math.floor((high - low) / step + 1e-9), MAX_POINTS) + 1
        if self.kind == "int":
            return tuple(int(low + step * place) for place in range(count))
        return tuple(float(f"{low + step * place:.12g}") for place in range(count))


def _is_among(value: Scalar, values: tuple[Scalar, ...]) -> bool:
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values)


class Objective(Struct, frozen=True):
    """A metric, and which of its values counts: the ``best``, the ``last``, or the mean of the last
    ``count``."""

    metric: str
    direction: Direction = "minimize"
    over: Over = "best"
    count: int = 1

    def is_better(self, value: float, other: float) -> bool:
        return value < other if self.direction == "minimize" else value > other


class SamplerSpec(Struct, frozen=True):
    """``startup``: random points before the sampler learns; None for the sampler's default."""

    kind: SamplerKind = "tpe"
    startup: int | None = None


class PrunerSpec(Struct, frozen=True):
    """When a trial is pruned. A full run has ``length`` units of ``by`` (steps, or a metric such as
    ``epoch``), divided into ``rungs``. The first ``startup`` trials, and the first ``warmup`` rungs
    of each, are never pruned. ``percentile`` of the trials continues; 1/``eta`` of them with
    halving; ``patience`` counts rungs without a better value."""

    kind: PrunerKind = "none"
    by: str = "step"
    length: float | None = None
    rungs: int = RUNGS
    startup: int = 5
    warmup: int = 0
    percentile: float = 50.0
    eta: int = 3
    patience: int = 5


class Constraints(Struct, frozen=True, rename={"memory_bytes": "memory", "step_seconds": "step_time"}):
    """Limits of a feasible point: GPU memory in bytes, seconds per step."""

    memory_bytes: int | None = None
    step_seconds: float | None = None

    @property
    def count(self) -> int:
        return (self.memory_bytes is not None) + (self.step_seconds is not None)


class Budget(Struct, frozen=True, rename={"wall_seconds": "wall"}):
    """The limits of a study. None is unlimited."""

    trials: int | None = None
    gpu_hours: float | None = None
    wall_seconds: float | None = None


class PbtSpec(Struct, frozen=True):
    """Population-based training with ``members`` runs: every ``every`` steps the worst ``quantile``
    continues from checkpoints of the best, with parameters that are resampled (with probability
    ``resample``) or multiplied by one of ``factors``. A full run has ``length`` steps, None if
    unknown."""

    members: int
    every: int
    quantile: float = 0.25
    resample: float = 0.25
    factors: tuple[float, ...] = (0.8, 1.2)
    length: float | None = None


class StudySpec(Struct, frozen=True):
    """A study. ``params`` are fixed values that differ from the profile; at most ``trials_per_gpu``
    trials share a GPU; at most ``parallel`` run at a time (None: as many as fit); it ends once
    ``stop_after`` trials in a row have brought nothing better; the sampler learns from
    ``warm_start`` earlier runs of the profile; the pruned ones of the ``rerun`` best trials run
    again, to the end; ``target`` is that of its runs."""

    name: str
    profile: str
    space: tuple[Dimension, ...]
    objectives: tuple[Objective, ...]
    sampler: SamplerSpec = msgspec.field(default_factory=SamplerSpec)
    pruner: PrunerSpec = msgspec.field(default_factory=PrunerSpec)
    constraints: Constraints = msgspec.field(default_factory=Constraints)
    budget: Budget = msgspec.field(default_factory=Budget)
    stop_after: int | None = None
    params: Mapping[str, Scalar] = msgspec.field(default_factory=dict)
    gpus_per_trial: int = 0
    trials_per_gpu: int = 1
    parallel: int | None = None
    priority: int = PRIORITY
    seed: int = 0
    warm_start: int = 0
    rerun: int = 0
    pbt: PbtSpec | None = None
    target: Mapping[str, Any] | None = None

    @property
    def tuned(self) -> tuple[str, ...]:
        return tuple(dimension.name for dimension in self.space)

    @property
    def is_grid(self) -> bool:
        return self.pbt is None and self.sampler.kind == "grid"

    @property
    def method(self) -> str:
        """How points are chosen, in a word or two."""
        return self.sampler.kind if self.pbt is None else "population-based training"

    @property
    def wanted_trials(self) -> int | None:
        """The number of trials that the study will have; None if its budget counts something else."""
        if self.pbt is not None:
            return self.pbt.members
        limits = [self.budget.trials, len(self.grid()) if self.is_grid else None]
        return min((limit for limit in limits if limit is not None), default=None)

    def dimensions_of(self, point: Mapping[str, Scalar]) -> list[Dimension]:
        """The parameters that a point has."""
        return [dimension for dimension in self.space if dimension.applies(point)]

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
    dimension, rest = space[0], space[1:]
    if not dimension.applies(point):
        yield from _points(rest, point)
        return
    for value in dimension.grid() or ():
        yield from _points(rest, {**point, dimension.name: value})


_NEEDS = {"cmaes": ("cmaes",), "qmc": ("scipy",), "gp": ("torch", "scipy")}
"""Libraries that samplers need beside Optuna."""


def missing_library(spec: StudySpec) -> str | None:
    """What the study's sampler lacks and the command that installs it, in one line; None if nothing
    is missing."""
    needed = _NEEDS.get(spec.sampler.kind, ()) if spec.pbt is None else ()
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    return f"the sampler {spec.sampler.kind} needs {missing[0]}; pip install {missing[0]}" if missing else None


def study_spec(study: StudyRecord) -> StudySpec:
    """The specification of a stored study."""
    return msgspec.convert(json.loads(study.spec_json), StudySpec)
