"""A run's specification: its resolved profile, frozen at the launch. Recovery changes parameters
only, which are stored per attempt; a person may name its loss and, starting it again, change its target's options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gputui.core.errors import ExplainedError
from gputui.runs.launch_shell import LaunchShell
from gputui.store.metrics.roles import Mode

Scope = Literal["rank", "global"]
Scalar = str | int | float | bool | None
MetricsKind = Literal["auto", "jsonl", "csv", "hf", "tensorboard", "wandb", "stdout", "stderr", "output"]
"""The kinds of sources of metrics, as in profiles."""

# The parameters that recovery may change, and their usual names, for profiles that do not map the
# role.
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


_TOTALS = (
    "total_steps", "max_steps", "max_iters", "max_train_steps", "train_steps", "num_steps", "num_train_steps",
    "iterations", "steps",
)  # fmt: skip

METRICS_FILE = "metrics.jsonl"
"""The file in a run's folder that GPUTUI_METRICS names, where the profile names no other."""

SHELL_GPUS = "CUDA_VISIBLE_DEVICES"


def asked_steps(params: Mapping[str, object], step: int | None = None) -> int | None:
    """The number of steps in the parameters; None if there is none, or if the run has gone beyond: it then counts
    something else."""
    for name in _TOTALS:
        value = params.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0 and (step or 0) <= value:
            return value
    return None


class SpecError(ExplainedError, ValueError):
    """An invalid stored specification."""

    is_refusal = True


class GpuRequest(Struct, frozen=True):
    """The GPUs that a run requests; none for a CPU run.

    Attributes:
        count: any so many free ones.
        uuids: exactly these, if any are named.
        memory_bytes: free on each.
        min_count: the fewest with which recovery may continue when GPUs fail; None is ``count``.
        shell: CUDA_VISIBLE_DEVICES of the launching shell, where that chose them.
        beside_desktop: also accept a GPU whose graphics processes hold much of its memory.
        share: the part of its one GPU that the run takes, beside others up to the whole.
    """

    count: int = 0
    uuids: tuple[str, ...] = ()
    memory_bytes: int | None = None
    min_count: int | None = None
    shell: str | None = None
    beside_desktop: bool = False
    share: float = 1.0

    @property
    def origin_words(self) -> str:
        """The remark that the launching shell chose the GPUs, as the end of a sentence; else empty."""
        if self.shell is None:
            return ""
        return f", by {SHELL_GPUS}={shlex.quote(self.shell)} of the launching shell"


class MetricsSpec(Struct, frozen=True):
    """One source of a run's metrics.

    Attributes:
        path: may hold ``{run_dir}`` and a glob (hf).
        patterns: regular expressions with named groups, for printed metrics.
        step: the column or group of the step; None for the usual names.
        units: factors of values, by name.
    """

    kind: MetricsKind
    path: str | None = None
    patterns: tuple[str, ...] = ()
    step: str | None = None
    units: Mapping[str, float] = msgspec.field(default_factory=dict)


class BestMetric(Struct, frozen=True):
    """The metric that a run is judged by, and whether less or more of it is better."""

    name: str
    mode: Mode


class CheckpointSpec(Struct, frozen=True):
    """The checkpoints that a profile names.

    Attributes:
        directory: the whole path of the folder, with placeholders.
        pattern: a glob below the folder.
        resume: the tokens that resume from ``{checkpoint}``.
        keep: the number of the newest ones that are kept; None for all.
        keep_best: the metric by which the best one is kept too.
    """

    directory: str
    pattern: str
    resume: tuple[str, ...] = ()
    keep: int | None = None
    keep_best: str | None = None


PythonOrigin = Literal["profile", "command", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH", "trainer", "gputui"]

PYTHON_ORIGINS: Mapping[PythonOrigin, str] = {
    "profile": "which the profile names",
    "command": "which the command names",
    "VIRTUAL_ENV": "of the active virtual environment (VIRTUAL_ENV)",
    "CONDA_PREFIX": "of the active conda environment (CONDA_PREFIX)",
    "PATH": "the first python on PATH",
    "trainer": "gputui's own, because the program comes with it",
    "gputui": "gputui's own, because no environment was active and PATH had no other python before it",
}
"""Why an interpreter was taken, as the end of a sentence that names its path."""


class Phase(Struct, frozen=True):
    """Parameters up to the checkpoint of step ``until``, None for the last phase."""

    until: int | None
    params: Mapping[str, Scalar]


class RunSpec(Struct, frozen=True):
    """Everything needed to start an attempt but its parameters, GPUs and checkpoint.

    Placeholders are substituted inside tokens, so that a value can never become two arguments.

    Attributes:
        name: of the profile.
        launcher: a name in LAUNCHERS.
        program: what follows the interpreter (``("train.py",)`` or ``("-m", "trainer")``), or a whole command.
        workdir: of the command; for a typed command the folder where it was typed.
        python: the interpreter; None where the command names its own program.
        python_origin: why it was taken; None on a target, and without an interpreter.
        profile_path: None for a run of a command.
        typed: the words of a typed command.
        spellings: the text of a typed number, by parameter. A script may take 1 and 1e-3, and neither 1.0 nor 0.001.
        nproc: the number of ranks.
        visible: whether CUDA_VISIBLE_DEVICES holds UUIDs or indices.
        disk_bytes: free on the disk before the start.
        args: tokens, split once as a shell would; None means ``--key value`` for each parameter.
        loss: the metric that is the training loss; None leaves it to the usual names.
        best: the metric that the run is judged by.
        roles: parameters by what they are for (ROLE_NAMES).
        multiples: the number that recovery keeps a parameter a multiple of.
        scopes: whether a parameter counts per rank or over all ranks.
        recovery: the section as in the profile.
        alerts: the section as in the profile, or the name of a set; None for no alerts.
        grace_seconds: the time to end after a stop.
        gates: least or most values of metrics at the end.
        sinks: destinations by form of export, with {run_dir}, {run_id} and parameters.
        target: as of the launch: name, kind and the kind's options; None for this machine.
        study_id: the study whose trial the run is; None for no study.
        trial: the trial's number in the study.
        tuned: parameters that recovery must not change.
        notify: every recipient of messages is told of its end and of its recoveries.
        after: the ids of runs that must have succeeded before its first attempt starts.
        after_any: the ids of runs that must have ended before its first attempt starts.
        begin_at: it does not start before this time (UTC unix seconds).
        time_limit_seconds: the time that it may train until a person starts it again; None on a target, which has its
            own.
        code: of its working directory at the launch (`code_version`); its diff is in the private specification only.
        phases: parameters that change at checkpoints; those of the first phase are in ``params`` already.
        shell: the environment of the launch; in the private specification only.
    """

    name: str
    launcher: str
    program: tuple[str, ...]
    workdir: str
    python: str | None = None
    python_origin: PythonOrigin | None = None
    profile_path: str | None = None
    typed: tuple[str, ...] = ()
    spellings: Mapping[str, str] = msgspec.field(default_factory=dict)
    nproc: int = 1
    gpus: GpuRequest = msgspec.field(default_factory=GpuRequest)
    visible: Literal["uuid", "index"] = "uuid"
    disk_bytes: int | None = None
    params: Mapping[str, Scalar] = msgspec.field(default_factory=dict)
    args: tuple[str, ...] | None = None
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    metrics: tuple[MetricsSpec, ...] = ()
    loss: str | None = None
    best: BestMetric | None = None
    checkpoints: CheckpointSpec | None = None
    roles: Mapping[str, str] = msgspec.field(default_factory=dict)
    multiples: Mapping[str, int] = msgspec.field(default_factory=dict)
    scopes: Mapping[str, Scope] = msgspec.field(default_factory=dict)
    recovery: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"policy": "standard"})
    alerts: str | Mapping[str, Any] | None = "standard"
    grace_seconds: float = 30.0
    priority: int = 0
    gates: Mapping[str, float] = msgspec.field(default_factory=dict)
    sinks: Mapping[str, str] = msgspec.field(default_factory=dict)
    target: Mapping[str, Any] | None = None
    study_id: str | None = None
    trial: int | None = None
    tuned: tuple[str, ...] = ()
    notify: bool = False
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    begin_at: float | None = None
    time_limit_seconds: float | None = None
    code: Mapping[str, Any] | None = None
    phases: tuple[Phase, ...] = ()
    shell: LaunchShell | None = None

    def ranks_on(self, gpus: int) -> int:
        """Number of ranks on that many GPUs of this machine, at the profile's ranks per GPU."""
        count = len(self.gpus.uuids) or self.gpus.count
        if count and gpus:
            return max(1, self.nproc * gpus // count)
        return self.nproc

    @property
    def learns_metrics(self) -> bool:
        """True if gputui finds out what its metrics are."""
        return any(source.kind == "auto" for source in self.metrics)

    @property
    def searched_events(self) -> tuple[MetricsSpec, ...]:
        """The folders of event files that are searched for new files while an attempt writes them. On a target only
        the newest file of the folder itself is read."""
        return tuple(source for source in self.metrics if source.kind == "tensorboard" and self.target is None)

    @property
    def names_metrics(self) -> bool:
        """True if its profile says where its metrics are, so that without a line it has not begun to train."""
        return any(source.kind != "auto" for source in self.metrics)

    @property
    def python_words(self) -> str | None:
        """The interpreter, and why it was taken: ``/env/bin/python, which the profile names``."""
        if self.python is None or self.python_origin is None:
            return None
        return f"{self.python}, {PYTHON_ORIGINS[self.python_origin]}"

    def role(self, role: str, params: Mapping[str, Scalar]) -> str | None:
        """The parameter with a ``role`` (one of ROLE_NAMES), or None if this profile has none."""
        mapped = self.roles.get(role)
        if mapped is not None:
            if mapped in params:
                return mapped
            return None
        return next((name for name in ROLE_NAMES.get(role, ()) if name in params), None)

    def to_json(self) -> dict[str, Any]:
        shape: dict[str, Any] = msgspec.to_builtins(self)
        return shape

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSpec:
        """Read a stored specification. Raises SpecError naming the invalid part."""
        try:
            return msgspec.convert(data, cls)
        except (TypeError, ValueError) as error:
            raise SpecError(f"not a run specification: {error}") from error
