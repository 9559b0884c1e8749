"""What a study is, frozen when it begins: the space, the objectives, the sampler, the pruner and the budget.

Plain data without pydantic: the study's process and the agent work from it. `gputui.studies.loading` makes it from a
file.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from gputui.runs.spec import Scalar
from gputui.store.studies import StudyRecord

DimensionKind = Literal["float", "int", "choice"]
Direction = Literal["minimize", "maximize"]
Over = Literal["best", "last", "mean"]
SamplerKind = Literal["grid", "random", "tpe", "cmaes", "qmc", "gp", "nsga2"]
PrunerKind = Literal["none", "median", "percentile", "halving", "hyperband", "patient"]

PRIORITY = -10
"""Below a run that a person launches, which has 0 unless its profile says otherwise."""
RUNGS = 27
"""Rungs of a full run: Hyperband's smallest share of a run is then 1/27."""
WITHOUT_OPTUNA: frozenset[str] = frozenset({"grid"})
"""Samplers of gputui's own."""


class StudySpecError(ValueError):
    """A stored study cannot be understood."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One tuned parameter: ``low`` to ``high`` (both included), by ``step`` or on a logarithmic scale; or one of
    ``choices``."""

    name: str
    kind: DimensionKind
    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = None
    choices: tuple[Scalar, ...] = ()

    def holds(self, value: Scalar) -> bool:
        """Whether a value is one that it can take."""
        if self.kind == "choice":
            return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.choices)
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
        """How many values it can take; None where there is no end of them."""
        if self.kind == "choice":
            return len(self.choices)
        assert self.low is not None and self.high is not None
        # Steps that add up to the upper end but for rounding include it.
        step = self._grid_step
        return None if step is None else math.floor((self.high - self.low) / step + 1e-9) + 1

    def grid(self) -> tuple[Scalar, ...] | None:
        """Every value that it can take, in order; None where there is no end of them."""
        if self.kind == "choice":
            return self.choices
        count, step, low = self.grid_size, self._grid_step, self.low
        if count is None or step is None or low is None:
            return None
        if self.kind == "int":
            return tuple(int(low + step * place) for place in range(count))
        return tuple(float(f"{low + step * place:.12g}") for place in range(count))


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric of the runs, and which of its values counts: the ``best``, the ``last``, or the mean of the last
    ``count``."""

    metric: str
    direction: Direction = "minimize"
    over: Over = "best"
    count: int = 1

    def is_better(self, value: float, other: float) -> bool:
        return value < other if self.direction == "minimize" else value > other


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """``startup``: points drawn at random before the sampler learns; None is its own default."""

    kind: SamplerKind = "tpe"
    startup: int | None = None


@dataclass(frozen=True, slots=True)
class PrunerSpec:
    """When a trial is cut short. A full run is ``length`` of ``by`` (steps, or a metric such as ``epoch``) and has
    ``rungs`` rungs. ``startup`` trials, and ``warmup`` rungs of each, are never pruned; ``percentile`` of the trials is
    kept, ``eta`` is the share that halving keeps (1/eta), ``patience`` the rungs without a better value."""

    kind: PrunerKind = "none"
    by: str = "step"
    length: float | None = None
    rungs: int = RUNGS
    startup: int = 5
    warmup: int = 0
    percentile: float = 50.0
    eta: int = 3
    patience: int = 5

    def position_of(self, rung: int) -> float:
        """Where a rung (from 1) lies, in units of ``by``."""
        return (self.length or 0.0) * rung / self.rungs


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a point must keep to count as feasible: bytes of GPU memory at most, seconds of a step at most."""

    memory_bytes: int | None = None
    step_seconds: float | None = None

    @property
    def count(self) -> int:
        return (self.memory_bytes is not None) + (self.step_seconds is not None)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a study may take. None is no limit."""

    trials: int | None = None
    gpu_hours: float | None = None
    wall_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class PbtSpec:
    """Population-based training: ``members`` runs; every ``every`` steps the worst ``quantile`` of them goes on from a
    checkpoint of one of the best, with parameters drawn again (with probability ``resample``) or multiplied by one of
    ``factors``. A full run has ``length`` steps, None where that is not known."""

    members: int
    every: int
    quantile: float = 0.25
    resample: float = 0.25
    factors: tuple[float, ...] = (0.8, 1.2)
    length: float | None = None


@dataclass(frozen=True, slots=True)
class StudySpec:
    """A study. ``params`` are fixed values that differ from the profile's; ``trials_per_gpu`` is how many trials share
    a GPU at most, ``parallel`` how many may run at a time (None: as many as fit); ``warm_start`` how many earlier runs
    of the profile the sampler learns from; ``rerun`` how many of the best trials run to the end after all, where they
    were cut short."""

    name: str
    profile: str
    space: tuple[Dimension, ...]
    objectives: tuple[Objective, ...]
    sampler: SamplerSpec = field(default_factory=SamplerSpec)
    pruner: PrunerSpec = field(default_factory=PrunerSpec)
    constraints: Constraints = field(default_factory=Constraints)
    budget: Budget = field(default_factory=Budget)
    params: Mapping[str, Scalar] = field(default_factory=dict)
    gpus_per_trial: int = 0
    trials_per_gpu: int = 1
    parallel: int | None = None
    priority: int = PRIORITY
    seed: int = 0
    warm_start: int = 0
    rerun: int = 0
    pbt: PbtSpec | None = None

    @property
    def tuned(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.space)

    @property
    def needs_optuna(self) -> bool:
        return self.pbt is None and (self.sampler.kind not in WITHOUT_OPTUNA or self.pruner.kind != "none")

    @property
    def grid_size(self) -> int | None:
        """How many points the space has; None where there is no end of them."""
        sizes = [one.grid_size for one in self.space]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def grid(self) -> list[dict[str, Scalar]] | None:
        """Every point of the space, the last parameter changing fastest; None where there is no end of them."""
        axes = [one.grid() for one in self.space]
        if any(axis is None for axis in axes):
            return None
        points = itertools.product(*(axis for axis in axes if axis is not None))
        return [dict(zip(self.tuned, point, strict=True)) for point in points]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StudySpec:
        """Rebuild a stored study; what a newer gputui added is left out. Raises StudySpecError."""
        try:
            values = _known(cls, data)
            values["space"] = tuple(
                Dimension(**{**_known(Dimension, one), "choices": tuple(one.get("choices") or ())})
                for one in data["space"]
            )
            values["objectives"] = tuple(Objective(**_known(Objective, one)) for one in data["objectives"])
            for name, kind in _PARTS.items():
                values[name] = kind(**_known(kind, data.get(name) or {}))
            if (pbt := data.get("pbt")) is not None:
                values["pbt"] = PbtSpec(**{**_known(PbtSpec, pbt), "factors": tuple(pbt["factors"])})
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StudySpecError(f"not a study: {error}") from error


def known_study_spec(study: StudyRecord) -> StudySpec | None:
    """What a stored study is; None where this gputui cannot read it."""
    try:
        return StudySpec.from_json(json.loads(study.spec_json))
    except ValueError:
        return None


_PARTS: dict[str, type] = {
    "sampler": SamplerSpec,
    "pruner": PrunerSpec,
    "constraints": Constraints,
    "budget": Budget,
}


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in data.items() if name in names}
