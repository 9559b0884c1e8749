"""The specification of a study, frozen when it begins: space, objectives, sampler, pruner and budget.

Plain data without pydantic, for the study's process and the agent. `gputui.studies.loading` makes it from a file.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
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
WITHOUT_OPTUNA: frozenset[str] = frozenset({"grid"})
"""The samplers that gputui implements itself."""


class Dimension(Struct, frozen=True):
    """A tuned parameter: from ``low`` to ``high`` (inclusive), in steps or on a logarithmic scale; or one of
    ``choices``."""

    name: str
    kind: DimensionKind
    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = None
    choices: tuple[Scalar, ...] = ()

    def holds(self, value: Scalar) -> bool:
        """Whether a value lies in the dimension."""
        if self.kind == "choice":
            return any(
                value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in self.choices
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if (self.kind == "int" and value != int(value)) or not (self.low or 0) <= value <= (self.high or 0):
            return False
        steps = (value - (self.low or 0)) / (self.step or 1)
        return (self.step is None and self.kind == "float") or self.log or abs(steps - round(steps)) < 1e-9

    @property
    def _grid_step(self) -> float | None:
        return self.step if self.step is not None else 1 if self.kind == "int" and not self.log else None

    @property
    def grid_size(self) -> int | None:
        """The number of values; None if it is unlimited."""
        if self.kind == "choice":
            return len(self.choices)
        assert self.low is not None and self.high is not None
        # Rounding must not exclude the upper end.
        step = self._grid_step
        return None if step is None else math.floor((self.high - self.low) / step + 1e-9) + 1

    def grid(self) -> tuple[Scalar, ...] | None:
        """Every value in order; None if their number is unlimited."""
        if self.kind == "choice":
            return self.choices
        count, step, low = self.grid_size, self._grid_step, self.low
        if count is None or step is None or low is None:
            return None
        if self.kind == "int":
            return tuple(int(low + step * place) for place in range(count))
        return tuple(float(f"{low + step * place:.12g}") for place in range(count))


class Objective(Struct, frozen=True):
    """A metric, and which of its values counts: the ``best``, the ``last``, or the mean of the last ``count``."""

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
    """When a trial is pruned. A full run has ``length`` units of ``by`` (steps, or a metric such as ``epoch``), divided
    into ``rungs``. The first ``startup`` trials, and the first ``warmup`` rungs of each, are never pruned.
    ``percentile`` of the trials continues; 1/``eta`` of them with halving; ``patience`` counts rungs without a better
    value."""

    kind: PrunerKind = "none"
    by: str = "step"
    length: float | None = None
    rungs: int = RUNGS
    startup: int = 5
    warmup: int = 0
    percentile: float = 50.0
    eta: int = 3
    patience: int = 5


class Constraints(Struct, frozen=True):
    """Limits of a feasible point: GPU memory in bytes, seconds per step."""

    memory_bytes: int | None = None
    step_seconds: float | None = None

    @property
    def count(self) -> int:
        return (self.memory_bytes is not None) + (self.step_seconds is not None)


class Budget(Struct, frozen=True):
    """The limits of a study. None is unlimited."""

    trials: int | None = None
    gpu_hours: float | None = None
    wall_seconds: float | None = None


class PbtSpec(Struct, frozen=True):
    """Population-based training with ``members`` runs: every ``every`` steps the worst ``quantile`` continues from
    checkpoints of the best, with parameters that are resampled (with probability ``resample``) or multiplied by one of
    ``factors``. A full run has ``length`` steps, None if unknown."""

    members: int
    every: int
    quantile: float = 0.25
    resample: float = 0.25
    factors: tuple[float, ...] = (0.8, 1.2)
    length: float | None = None


class StudySpec(Struct, frozen=True):
    """A study. ``params`` are fixed values that differ from the profile; at most ``trials_per_gpu`` trials share a GPU;
    at most ``parallel`` run at a time (None: as many as fit); the sampler learns from ``warm_start`` earlier runs of
    the profile; the pruned ones of the ``rerun`` best trials run again, to the end; ``target`` is that of its runs."""

    name: str
    profile: str
    space: tuple[Dimension, ...]
    objectives: tuple[Objective, ...]
    sampler: SamplerSpec = msgspec.field(default_factory=SamplerSpec)
    pruner: PrunerSpec = msgspec.field(default_factory=PrunerSpec)
    constraints: Constraints = msgspec.field(default_factory=Constraints)
    budget: Budget = msgspec.field(default_factory=Budget)
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
    def needs_optuna(self) -> bool:
        return self.pbt is None and (self.sampler.kind not in WITHOUT_OPTUNA or self.pruner.kind != "none")

    @property
    def method(self) -> str:
        """How points are chosen, in a word or two."""
        return self.sampler.kind if self.pbt is None else "population-based training"

    @property
    def grid_size(self) -> int | None:
        """The number of points; None if it is unlimited."""
        sizes = [dimension.grid_size for dimension in self.space]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    @property
    def wanted_trials(self) -> int | None:
        """The number of trials that the study will have; None if its budget counts something else."""
        points = self.grid_size if self.sampler.kind == "grid" else None
        limits = [limit for limit in (self.budget.trials, points) if limit is not None]
        return self.pbt.members if self.pbt is not None else min(limits, default=None)

    def grid(self) -> list[dict[str, Scalar]] | None:
        """Every point, the last parameter changing fastest; None if their number is unlimited."""
        axes = [dimension.grid() for dimension in self.space]
        if any(axis is None for axis in axes):
            return None
        points = itertools.product(*(axis for axis in axes if axis is not None))
        return [dict(zip(self.tuned, point, strict=True)) for point in points]

    def to_json(self) -> dict[str, Any]:
        shape: dict[str, Any] = msgspec.to_builtins(self)
        return shape


def study_spec(study: StudyRecord) -> StudySpec:
    """The specification of a stored study."""
    return msgspec.convert(json.loads(study.spec_json), StudySpec)
