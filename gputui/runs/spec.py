"""A run's specification: a profile with everything resolved, frozen at the launch.

It is what the agent works from; it is stored with the run and never changes. Recovery changes only parameters, and
those are kept per attempt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any, Literal

from gputui.runs.executors import EXECUTORS
from gputui.runs.launch_shell import LaunchShell
from gputui.runs.launchers import LAUNCHERS
from gputui.store.json_columns import UNREADABLE
from gputui.store.runs import Run

Scope = Literal["rank", "global"]
Scalar = str | int | float | bool | None
MetricsKind = Literal["jsonl", "csv", "hf", "tensorboard", "wandb", "stdout", "stderr", "output"]

# What recovery may change, and the names under which it finds the parameter when the profile maps no role.
ROLE_NAMES: dict[str, tuple[str, ...]] = {
    "batch_size": ("batch_size",),
    "grad_accum": ("grad_accum", "gradient_accumulation_steps"),
    "gradient_checkpointing": ("gradient_checkpointing",),
    "cpu_offload": ("cpu_offload",),
    "lr": ("lr", "learning_rate"),
    "grad_clip": ("grad_clip", "max_grad_norm"),
    "timeout": ("timeout",),
    "num_workers": ("num_workers",),
}


class SpecError(ValueError):
    """A stored specification cannot be understood."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """Which GPUs a run asks for: any ``count`` free ones, or exactly those in ``uuids``. A CPU run asks for none.
    ``min_count``: with how few recovery may continue when GPUs fail; None is not fewer than asked for."""

    count: int = 0
    uuids: tuple[str, ...] = ()
    memory_bytes: int | None = None
    min_count: int | None = None


@dataclass(frozen=True, slots=True)
class MetricsSpec:
    """One place where a run's metrics come from. ``path`` may hold ``{run_dir}`` and a glob (hf); ``patterns`` are
    regular expressions with named groups, for what is printed. ``step`` names the column or group that is the step,
    None for the usual names; ``units`` are what values of a name are multiplied with."""

    kind: MetricsKind
    path: str | None = None
    patterns: tuple[str, ...] = ()
    step: str | None = None
    units: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MetricsSpec:
        return cls(**_known(cls, {**data, "patterns": tuple(data.get("patterns") or ())}))


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """Where checkpoints appear, and the arguments that resume from one (tokens, with ``{checkpoint}``)."""

    directory: str
    pattern: str
    resume: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a run with parameters of its own, up to the checkpoint of a step; the last has no such end."""

    until: int | None
    params: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything needed to start an attempt but its parameters, GPUs and checkpoint.

    ``launcher`` is a name in LAUNCHERS. ``program`` is what follows the interpreter (``("train.py",)`` or
    ``("-m", "trainer")``), or a whole command. ``args`` are tokens, split once as a shell would; None means
    ``--key value`` for each parameter. Placeholders are substituted inside tokens, so that a value can never become two
    arguments.
    """

    name: str
    launcher: str
    program: tuple[str, ...]
    workdir: str
    python: str | None = None
    profile_path: str | None = None
    nproc: int = 1
    gpus: GpuRequest = field(default_factory=GpuRequest)
    visible: Literal["uuid", "index"] = "uuid"
    disk_bytes: int | None = None
    params: Mapping[str, Scalar] = field(default_factory=dict)
    args: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[MetricsSpec, ...] = ()
    checkpoints: CheckpointSpec | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    # Parameter → what recovery keeps it a multiple of; and whether it is of each rank, or of all of them together.
    multiples: Mapping[str, int] = field(default_factory=dict)
    scopes: Mapping[str, Scope] = field(default_factory=dict)
    recovery: Mapping[str, Any] = field(default_factory=lambda: {"policy": "standard"})
    alerts: str | Mapping[str, Any] | None = "standard"
    grace_seconds: float = 30.0
    priority: int = 0
    gates: Mapping[str, float] = field(default_factory=dict)
    # Form of export → where to, with {run_dir}, {run_id} and parameters.
    sinks: Mapping[str, str] = field(default_factory=dict)
    # Where it runs, from its target at launch: name, kind and the kind's fields; None for this machine.
    target: Mapping[str, Any] | None = None
    # The study and the trial that the run is of; ``tuned`` are parameters that recovery must leave alone.
    study_id: str | None = None
    trial: int | None = None
    tuned: tuple[str, ...] = ()
    # How many trials of the study may be on one GPU at most.
    trials_per_gpu: int = 1
    # The ids of runs that must have succeeded before its first attempt starts.
    after: tuple[str, ...] = ()
    # The code of its working directory at the launch (`code_version`); its diff is in the private specification only.
    code: Mapping[str, Any] | None = None
    # Parameters that change at checkpoints; those of the first phase are in ``params`` already.
    phases: tuple[Phase, ...] = ()
    # Of the shell that launched the run; in the private specification only.
    shell: LaunchShell | None = None

    def role(self, role: str, params: Mapping[str, Scalar]) -> str | None:
        """The parameter that plays ``role`` (one of ROLE_NAMES), or None when this profile has none."""
        mapped = self.roles.get(role)
        if mapped is not None:
            return mapped if mapped in params else None
        return next((name for name in ROLE_NAMES.get(role, ()) if name in params), None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSpec:
        """Rebuild a stored specification; what a newer gputui added to it is left out. Raises SpecError naming what
        does not fit."""
        try:
            values = _known(cls, data)
            request = dict(values.get("gpus") or {})
            request["uuids"] = tuple(request.get("uuids") or ())
            values["gpus"] = GpuRequest(**_known(GpuRequest, request))
            # One source, or none, was all that a run could have at first.
            metrics = values.get("metrics") or ()
            sources = [metrics] if isinstance(metrics, Mapping) else metrics
            values["metrics"] = tuple(MetricsSpec.from_json(one) for one in sources if one.get("kind") != "none")
            if values.get("checkpoints") is not None:
                checkpoints = dict(values["checkpoints"])
                checkpoints["resume"] = tuple(checkpoints.get("resume") or ())
                values["checkpoints"] = CheckpointSpec(**_known(CheckpointSpec, checkpoints))
            values["program"] = tuple(values["program"])
            values["tuned"] = tuple(values.get("tuned") or ())
            values["after"] = tuple(values.get("after") or ())
            values["phases"] = tuple(Phase(**_known(Phase, one)) for one in values.get("phases") or ())
            values["shell"] = LaunchShell.from_json(values.get("shell"))
            if values.get("args") is not None:
                values["args"] = tuple(values["args"])
            spec = cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SpecError(f"not a run specification: {error}") from error
        if spec.launcher not in LAUNCHERS or not spec.program:
            raise SpecError(f"not a run specification: launcher {spec.launcher!r}, program {spec.program!r}")
        if spec.target is not None and (spec.target.get("kind") not in EXECUTORS or "name" not in spec.target):
            raise SpecError(f"not a run specification: target {spec.target!r}")
        if not LAUNCHERS[spec.launcher].takes_command and not spec.python:
            raise SpecError("not a run specification: no interpreter")
        return spec


# A specification never changes, and all that wait are looked at twice a second.
@lru_cache(maxsize=4096)
def parse_spec(text: str) -> RunSpec:
    """A specification as it is stored. Raises SpecError."""
    try:
        return RunSpec.from_json(json.loads(text))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise error if isinstance(error, SpecError) else SpecError(f"not a run specification: {error}") from error


def spec_of(run: Run) -> RunSpec:
    """What a run was launched with. Raises SpecError, also if the parameters of its next attempt cannot be read."""
    if run.params is UNREADABLE:
        raise SpecError("its parameters are damaged")
    return parse_spec(run.spec_json)


def known_spec(run: Run) -> RunSpec | None:
    """The same, None if this gputui cannot understand it."""
    try:
        return spec_of(run)
    except SpecError:
        return None


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that this gputui knows."""
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in data.items() if name in names}
