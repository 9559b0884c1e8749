"""The actions of recovery ladders: pure functions from a run and its machine to a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import parameter
from gputui.recovery.batches import for_fewer_ranks, shrink_batch
from gputui.recovery.classify import Incident
from gputui.recovery.effects import (
    ActionContext,
    AppliedAction,
    Change,
    Effect,
    Params,
    Precondition,
    Result,
    SkippedAction,
    changed,
    number,
    show,
    unmapped,
    whole,
)
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.spec import RunSpec, Scalar

FIRST_CLIP = 1.0  # the usual clipping norm, for scripts whose clipping is off
# Margin below the throttling temperature; an idle GPU cools by as much within a minute.
COOL_MARGIN_CELSIUS = 15.0
DISK_LIMIT_SECONDS = 6 * 3600.0  # a person frees a disk within half a working day
# Required space before the first checkpoint, when their size is unknown.
ROOM_BYTES = 1 << 30
ROOM_LIMIT_SECONDS = 900.0  # what else has filled it may end by itself
PRUNE_LIMIT_SECONDS = 600.0  # many large files on a slow disk

# NCCL's log, and PyTorch's record of the last collectives, which is written when one times out
# (docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; pytorch.org/docs, "Flight Recorder").
NCCL_DEBUG_ENV = {
    "NCCL_DEBUG": "INFO",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "{run_dir}/nccl_trace_rank_",
}

ELSEWHERE = "only the run's target sees its checkpoints"
NO_CHECKPOINTS = "nothing tells the script which checkpoint to load"
UNNAMED_CHECKPOINTS = "the profile names no checkpoints"


class ActionKind(Struct, frozen=True):
    """An action of a recovery ladder.

    Attributes:
        name: for profiles, the database and JSON.
        title: for sentences.
        help: one sentence for the documentation.
        apply: None for actions that choose a checkpoint or stop.
        argument: what the action's number means; None if it takes none.
        default: the number where a ladder names none.
        least: the smallest number that a ladder may name.
        whole: the number must be an integer.
    """

    name: str
    title: str
    help: str
    apply: Callable[[ActionContext], Result] | None = None
    argument: str | None = None
    default: float | None = None
    least: float = 0.0
    whole: bool = False


def tuned_by_study(spec: RunSpec, applied: AppliedAction) -> str | None:
    """A changed parameter that the run's study tunes; None if there is none."""
    return next((change.parameter for change in applied.changes if change.parameter in spec.tuned), None)


# --- parameters -------------------------------------------------------------------------------


def _unchanged(name: str) -> Callable[[ActionContext], Result]:
    return lambda _: AppliedAction(name, "changed nothing")


def _switch_on(action: str) -> Callable[[ActionContext], Result]:
    def apply(context: ActionContext) -> Result:
        name, value = context.role(action)
        if name is None:
            return unmapped(action, action)
        switched = _switched_on(value)
        if switched is None:
            return SkippedAction(action, f"{name} is {show(value)}, neither on nor off")
        if switched == value:
            return SkippedAction(action, f"{name} is on already")
        return AppliedAction(action, f"turned {name} on", (Change(name, value, switched),))

    return apply


def _switched_on(value: Scalar) -> Scalar:
    """The value that means on; the same if it is on already; None if the parameter is no switch."""
    pairs = {"false": "true", "False": "True", "0": "1", "no": "yes", "off": "on", "": "true"}
    if isinstance(value, str):
        if value in pairs.values():
            return value
        return pairs.get(value)
    if value is None or isinstance(value, bool):
        return True
    if value == 0:
        return 1
    if value == 1:
        return value
    return None


def _divide(action: str, role: str, context: ActionContext, by: float) -> Result:
    """Divide a parameter by the argument, or by ``by``."""
    name, value = context.role(role)
    if name is None:
        return unmapped(action, role)
    before = number(value)
    if before is None or not before > 0:
        return SkippedAction(action, f"{name} is {show(value)}, not a number above 0")
    after = float(f"{before / (context.argument or by):.12g}")
    if after == 0:
        return SkippedAction(action, f"{name} is {parameter(before)} already")
    note = f"lowered {name} {parameter(before)} → {parameter(after)}"
    return AppliedAction(action, note, (Change(name, value, after),))


def lower_lr(context: ActionContext) -> Result:
    """Divide the learning rate, by 10 by default."""
    return _divide("lower_lr", "lr", context, 10.0)


def tighter_clip(context: ActionContext) -> Result:
    """Divide the clipping norm, by 2 by default; enable clipping at FIRST_CLIP if it is off."""
    name, value = context.role("grad_clip")
    if name is not None and (value is None or number(value) == 0.0):
        note = f"switched gradient clipping on ({name} {FIRST_CLIP})"
        return AppliedAction("tighter_clip", note, (Change(name, value, FIRST_CLIP),))
    return _divide("tighter_clip", "grad_clip", context, 2.0)


def longer_timeout(context: ActionContext) -> Result:
    """Multiply the timeout of collectives, by 2 by default."""
    action = "longer_timeout"
    name, value = context.role("timeout")
    if name is None:
        return unmapped(action, "timeout")
    before = number(value)
    if before is None or not before > 0:
        return SkippedAction(action, f"{name} is {show(value)}, not a number above 0")
    change = changed(name, value, math.ceil(before * (context.argument or 2.0)))
    return AppliedAction(action, f"raised {name} {parameter(before)} → {parameter(change.after)}", (change,))


def fewer_workers(context: ActionContext) -> Result:
    """Halve the data loader's workers."""
    action = "fewer_workers"
    name, value = context.role("num_workers")
    if name is None:
        return unmapped(action, "num_workers")
    workers = whole(value)
    if workers is None or workers < 0:
        return SkippedAction(action, f"{name} is {show(value)}, not a number of workers")
    if workers == 0:
        return SkippedAction(action, f"{name} is 0 already")
    note = f"lowered {name} {workers} → {workers // 2}"
    return AppliedAction(action, note, (changed(name, value, workers // 2),))


def new_port(context: ActionContext) -> Result:
    """Restart; every attempt gets a free port for its ranks to meet at."""
    launcher = context.spec.launcher
    if not LAUNCHERS[launcher].starts_ranks:
        why = f"the launcher {launcher} takes no port; the script chooses its own"
        return SkippedAction("new_port", why)
    return AppliedAction("new_port", "took another port")


# --- the machine ------------------------------------------------------------------------------


def exclude_gpu(context: ActionContext) -> Result:
    """Quarantine the faulty GPU; take a spare one, or go on with fewer, or wait for one."""
    name = "exclude_gpu"
    gpus = context.machine.gpus
    spec = context.spec
    if not gpus:
        return SkippedAction(name, "the run has no GPUs")
    if context.incident.contained:
        return SkippedAction(name, "the error left the GPU usable")
    faulty = _faulty_gpu(context.incident, gpus, spec)
    if faulty is None:
        return SkippedAction(name, "which GPU failed is not known")
    label = faulty if faulty.startswith(("GPU-", "MIG-")) else f"GPU {faulty}"
    lock = Effect(quarantine=(faulty,))
    if context.machine.spares:
        effect = lock | Effect(replacements=context.machine.spares[:1])
        return AppliedAction(name, f"took another GPU in place of {label}", effect=effect)
    result = go_on_with_fewer(spec, context.params, len(gpus), len(gpus) - 1, label)
    if isinstance(result, SkippedAction) and context.machine.later:
        return AppliedAction(name, f"waited for another GPU in place of {label}", effect=lock)
    return replace(result, effect=result.effect | lock)


def go_on_with_fewer(spec: RunSpec, params: Params, before: int, remaining: int, without: str) -> Result:
    """The result of exclude_gpu without a spare GPU.

    Args:
        before, remaining: numbers of GPUs; the profile may not allow so few as remain.
        without: names the failed GPUs.
    """
    name = "exclude_gpu"
    least = spec.gpus.min_count
    if least is None:
        why = "no other GPU is free, and the profile allows no fewer (min_gpus)"
        return SkippedAction(name, why)
    if remaining < max(1, least):
        why = f"no other GPU is free, and {remaining} would be fewer than min_gpus {least}"
        return SkippedAction(name, why)
    ranks = (spec.ranks_on(before), spec.ranks_on(remaining))
    changes, phrase = for_fewer_ranks(spec, params, *ranks)
    note = f"went on with {remaining} of {before} GPUs, without {without}{phrase}"
    return AppliedAction(name, note, changes, Effect(gpu_count=remaining))


def _faulty_gpu(incident: Incident, gpus: Sequence[str], spec: RunSpec) -> str | None:
    """The GPU that the driver named for an incident, else that of its rank."""
    if incident.gpu is not None:
        if incident.gpu in gpus:
            return incident.gpu
        return None
    if len(gpus) == 1:
        return gpus[0]
    has_one_each = spec.ranks_on(len(gpus)) == len(gpus)
    if has_one_each and incident.rank is not None and 0 <= incident.rank < len(gpus):
        return gpus[incident.rank]
    return None


def nccl_debug(context: ActionContext) -> Result:
    """Enable debug logs of NCCL and PyTorch for one attempt."""
    name = "nccl_debug"
    if context.spec.ranks_on(len(context.machine.gpus)) < 2:
        return SkippedAction(name, "the run has a single process, which does not communicate")
    return AppliedAction(name, "switched NCCL's debugging on", effect=Effect(env=NCCL_DEBUG_ENV))


def _wait(name: str, note: str, precondition: Precondition) -> AppliedAction:
    return AppliedAction(name, note, effect=Effect(preconditions=(precondition,)))


def wait_cool(context: ActionContext) -> Result:
    """Wait until every GPU of the run is well below its throttling temperature."""
    if not context.machine.gpus:
        return SkippedAction("wait_cool", "the run has no GPUs")
    cool = Precondition("cool", context.argument or 900.0, margin_celsius=COOL_MARGIN_CELSIUS)
    return _wait("wait_cool", "waited for the GPUs to cool down", cool)


def wait_disk(context: ActionContext) -> Result:
    """Wait until the disk has room for that many checkpoints."""
    name = "wait_disk"
    spec = context.spec
    if (why := _why_unseen(context)) is not None:
        return SkippedAction(name, why)
    sizes = [info.size_bytes for info in context.checkpoints if info.size_bytes]
    if not sizes:
        needed = spec.disk_bytes or ROOM_BYTES
        room = Precondition("room", ROOM_LIMIT_SECONDS, bytes_needed=needed)
        return _wait(name, "waited for room on the disk of the checkpoints", room)
    count = int(context.argument or 2)
    disk = Precondition("disk", DISK_LIMIT_SECONDS, bytes_needed=count * max(sizes))
    noun = "a checkpoint" if count == 1 else f"{count} checkpoints"
    return _wait(name, f"waited for room for {noun}", disk)


def _why_unseen(context: ActionContext) -> str | None:
    """The reason why the run's checkpoints are not seen here; None if they are."""
    if context.spec.checkpoints is None:
        return UNNAMED_CHECKPOINTS
    if not context.machine.sees_checkpoints:
        return ELSEWHERE
    return None


def prune_checkpoints(context: ActionContext) -> Result:
    """Remove checkpoints of the run's lineage that are older than its newest valid ones."""
    name = "prune_checkpoints"
    keep = int(context.argument or 3)
    why = _why_unseen(context) or context.machine.no_pruning
    if why is None and sum(info.valid for info in context.checkpoints) <= keep:
        why = f"there are no more than {keep} valid checkpoints"
    if why is not None:
        return SkippedAction(name, why)
    note = f"removed the checkpoints older than the newest {keep} valid ones"
    return _wait(name, note, Precondition("prune", PRUNE_LIMIT_SECONDS, keep=keep))


_ACTIONS = (
    ActionKind("restart", "a restart", "start again from the newest valid checkpoint", _unchanged("restart")),
    ActionKind("shrink_batch", "a smaller batch",
               "lower the batch to at most 0.75 of it and raise accumulation; keeps the effective batch within 2 %",
               shrink_batch),
    ActionKind("gradient_checkpointing", "gradient checkpointing",
               "enable gradient checkpointing", _switch_on("gradient_checkpointing")),
    ActionKind("cpu_offload", "CPU offloading", "enable CPU offloading", _switch_on("cpu_offload")),
    ActionKind("lower_lr", "a lower learning rate", "divide the learning rate",
               apply=lower_lr, argument="divisor", default=10.0, least=1.01),
    ActionKind("tighter_clip", "tighter gradient clipping",
               "divide the clipping norm, or clip at 1.0 if clipping is off",
               apply=tighter_clip, argument="divisor", default=2.0, least=1.01),
    ActionKind("fewer_workers", "a lower number of data loader workers",
               "halve the data loader workers", fewer_workers),
    ActionKind("rollback", "an earlier checkpoint",
               "go back that many checkpoints; strike off the later ones",
               apply=None, argument="checkpoints", default=1, least=1, whole=True),
    ActionKind("new_port", "another port", "start again with another port", new_port),
    ActionKind("longer_timeout", "a longer timeout",
               "multiply the timeout of collectives", apply=longer_timeout, argument="factor", default=2.0, least=1.01),
    ActionKind("nccl_debug", "debugging of NCCL",
               "enable the debug logs of NCCL and PyTorch for one attempt", nccl_debug),
    ActionKind("exclude_gpu", "exclusion of the failed GPU",
               "quarantine the failed GPU; use a free one, or fewer (`min_gpus`), or wait for one", exclude_gpu),
    ActionKind("wait", "a delay", "start again after a delay",
               apply=_unchanged("wait"), argument="seconds", default=60.0),
    ActionKind("wait_cool", "a wait for cooler GPUs",
               "wait, at most so long, until the GPUs are 15 °C below throttling",
               apply=wait_cool, argument="seconds", default=900.0, least=1.0),
    ActionKind("wait_disk", "a wait for disk space", "wait for room for that many checkpoints; stop after 6 h",
               apply=wait_disk, argument="checkpoints", default=2, least=1, whole=True),
    ActionKind("prune_checkpoints", "removal of old checkpoints", "remove old checkpoints; in no built-in policy",
               apply=prune_checkpoints, argument="checkpoints kept", default=3, least=1, whole=True),
    ActionKind("stop", "a stop", "stop the run and give the reason"),
)  # fmt: skip

ACTIONS: dict[str, ActionKind] = {kind.name: kind for kind in _ACTIONS}
"""Every action by its name, in the order of the documentation."""


def action_title(name: str) -> str:
    """The words for an action in a sentence; other steps of recovery are named in words already."""
    if name in ACTIONS:
        return ACTIONS[name].title
    return name
