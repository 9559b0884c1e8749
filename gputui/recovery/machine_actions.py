"""Recovery actions that depend on the machine: GPUs, disk space, environment.

Pure: the state of the machine is passed in, and an `Effect` says what the agent has to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.recovery.batches import fit, grain, share
from gputui.recovery.checkpoints.formats import CheckpointInfo
from gputui.recovery.classify import Incident
from gputui.runs.spec import RunSpec, Scalar


class Precondition(Struct, frozen=True):
    """A condition of the next attempt's start.

    ``cool``: every GPU of the run is ``margin_celsius`` below its throttling temperature. ``disk``: ``bytes_needed``
    are free on the disk of the checkpoints. ``room``: the same, or 5 % of the disk if that is less, because the need is
    not known. ``prune``: checkpoints older than the ``keep`` newest valid ones are removed. After ``limit_seconds`` the
    run continues anyway; with ``disk`` it fails.
    """

    kind: Literal["cool", "disk", "prune", "room"]
    limit_seconds: float = 0.0
    margin_celsius: float = 0.0
    bytes_needed: int = 0
    keep: int = 0


class Effect(Struct, frozen=True):
    """Effects of an action besides changed parameters.

    Attributes:
        env: variables of the next attempt only; they override the profile's.
        quarantine: UUIDs of GPUs that no run gets until a person clears them.
        replacements: UUIDs of GPUs in their place, as many as are available.
        preconditions: what the next attempt waits for.
        notify: send a notification.
        gpu_count: the run's new, smaller number of GPUs; None leaves it.
    """

    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    quarantine: tuple[str, ...] = ()
    replacements: tuple[str, ...] = ()
    preconditions: tuple[Precondition, ...] = ()
    notify: bool = False
    gpu_count: int | None = None

    def __or__(self, other: Effect) -> Effect:
        """The combination of both."""
        return Effect(
            env={**self.env, **other.env},
            quarantine=self.quarantine + other.quarantine,
            replacements=self.replacements + other.replacements,
            preconditions=self.preconditions + other.preconditions,
            notify=self.notify or other.notify,
            gpu_count=self.gpu_count if other.gpu_count is None else other.gpu_count,
        )


NO_EFFECT = Effect()


class Change(Struct, frozen=True):
    """One parameter's old and new value."""

    parameter: str
    before: Scalar
    after: Scalar


class AppliedAction(Struct, frozen=True):
    """An action that changes the next attempt. ``note`` is a phrase that completes "gputui …"."""

    name: str
    note: str
    changes: tuple[Change, ...] = ()
    effect: Effect = NO_EFFECT

    def to_json(self) -> dict[str, Any]:
        changes = [{"parameter": c.parameter, "from": c.before, "to": c.after} for c in self.changes]
        return {"action": self.name, "applied": True, "changes": changes, "note": self.note}


class SkippedAction(Struct, frozen=True):
    """An action that is not possible here, and why. ``effect`` still applies if the run stops for it."""

    name: str
    why: str
    effect: Effect = NO_EFFECT

    def to_json(self) -> dict[str, Any]:
        return {"action": self.name, "applied": False, "changes": [], "note": self.why}


Result = AppliedAction | SkippedAction
Params = Mapping[str, Scalar]


def apply_changes(params: Params, results: tuple[Result, ...]) -> dict[str, Scalar]:
    """Parameters with the changes of the applied actions."""
    changed = dict(params)
    for result in results:
        if isinstance(result, AppliedAction):
            changed |= {change.parameter: change.after for change in result.changes}
    return changed


def unmapped(action: str, role: str) -> SkippedAction:
    return SkippedAction(action, f"the profile has no parameter for {role}")


def whole(value: Scalar) -> int | None:
    """The value as an integer, also if it is text or 16.0; None if it is not whole."""
    as_float = number(value)
    return int(as_float) if as_float is not None and as_float.is_integer() and abs(as_float) < 2**53 else None


def number(value: Scalar) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def like(former: Scalar, value: int) -> Scalar:
    """The new value in the type of the former one, which the script's flag expects."""
    return str(value) if isinstance(former, str) else float(value) if isinstance(former, float) else value


def switched_on(value: Scalar) -> Scalar:
    """The value that means on; the same if it is on already; None if the parameter is no switch."""
    if value is None or value is False:
        return True
    if isinstance(value, str):
        pairs = {"false": "true", "False": "True", "0": "1", "no": "yes", "off": "on", "": "true"}
        return pairs.get(value, value if value in pairs.values() else None)
    if isinstance(value, bool):
        return value
    return 1 if value == 0 else value if value == 1 else None


def show(value: Scalar) -> str:
    return "not set" if value is None else repr(value)


# Margin below the throttling temperature; an idle GPU cools by as much within a minute.
COOL_MARGIN_CELSIUS = 15.0
DISK_LIMIT_SECONDS = 6 * 3600.0
# Required space before the first checkpoint, when their size is unknown.
ROOM_BYTES = 1 << 30
ROOM_LIMIT_SECONDS = 900.0
PRUNE_LIMIT_SECONDS = 600.0

# NCCL's log, and PyTorch's record of the last collectives, which is written when one times out
# (docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; pytorch.org/docs, "Flight Recorder").
NCCL_DEBUG_ENV = {
    "NCCL_DEBUG": "INFO",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "{run_dir}/nccl_trace_rank_",
}


ELSEWHERE = "only the run's target sees its checkpoints"


class MachineContext(Struct, frozen=True):
    """The state of the machine after an attempt.

    Attributes:
        gpus: UUIDs of the attempt's GPUs, in the order of its local ranks.
        spares: UUIDs of free, healthy GPUs that the run may use instead, best first.
        later: UUIDs of healthy GPUs that it may use instead once other runs have released them.
        notifies: the run's policy sends notifications.
        no_pruning: why checkpoints must not be removed; None if old ones may be.
        sees_checkpoints: the checkpoints and their disk are accessible from here.
    """

    gpus: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    notifies: bool = False
    no_pruning: str | None = None
    sees_checkpoints: bool = True


class ActionContext(Struct, frozen=True):
    """Input of an action. ``below``: the run did not start with this batch size, so a smaller one is tried."""

    incident: Incident
    spec: RunSpec
    params: Params
    argument: float | None = None
    checkpoints: Sequence[CheckpointInfo] = ()
    machine: MachineContext = msgspec.field(default_factory=MachineContext)
    below: int | None = None


def exclude_gpu(context: ActionContext) -> Result:
    """Quarantine the faulty GPU, and continue with a spare one, else with fewer if the profile allows it, else with the
    first that other runs release."""
    name, gpus, spec = "exclude_gpu", context.machine.gpus, context.spec
    if not gpus:
        return SkippedAction(name, "the run has no GPUs")
    if context.incident.contained:
        return SkippedAction(name, "the error left the GPU usable")
    faulty = faulty_gpu(context.incident, gpus, spec)
    if faulty is None:
        return SkippedAction(name, "which GPU failed is not known")
    index = faulty if faulty.startswith(("GPU-", "MIG-")) else f"GPU {faulty}"
    if context.machine.spares:
        effect = Effect(quarantine=(faulty,), replacements=context.machine.spares[:1])
        return AppliedAction(name, f"took another GPU in place of {index}", effect=effect)
    result = go_on_with_fewer(spec, context.params, len(gpus), len(gpus) - 1, index)
    if isinstance(result, SkippedAction) and context.machine.later:
        return AppliedAction(name, f"waited for another GPU in place of {index}", effect=Effect(quarantine=(faulty,)))
    return replace(result, effect=result.effect | Effect(quarantine=(faulty,)))


def go_on_with_fewer(spec: RunSpec, params: Params, before: int, remaining: int, without: str) -> Result:
    """Result of exclude_gpu without a spare GPU: ``left`` GPUs instead of ``before``, if the profile allows so few.
    ``without`` names the failed ones."""
    name, least = "exclude_gpu", spec.gpus.min_count
    if least is None:
        return SkippedAction(name, "no other GPU is free, and the profile allows no fewer (min_gpus)")
    if remaining < max(1, least):
        return SkippedAction(name, f"no other GPU is free, and {remaining} would be fewer than min_gpus {least}")
    changes, words = for_fewer_ranks(spec, params, spec.ranks_on(before), spec.ranks_on(remaining))
    note = f"went on with {remaining} of {before} GPUs, without {without}{words}"
    return AppliedAction(name, note, changes, Effect(gpu_count=remaining))


def faulty_gpu(incident: Incident, gpus: Sequence[str], spec: RunSpec) -> str | None:
    """The GPU that the driver named for an incident, else that of its rank."""
    if incident.gpu is not None:
        return incident.gpu if incident.gpu in gpus else None
    if len(gpus) == 1:
        return gpus[0]
    has_one_each = incident.rank is not None and spec.ranks_on(len(gpus)) == len(gpus)
    return gpus[incident.rank] if has_one_each and incident.rank is not None and incident.rank < len(gpus) else None


def for_fewer_ranks(spec: RunSpec, params: Params, before: int, after: int) -> tuple[tuple[Change, ...], str]:
    """Changes that keep the effective batch over all ranks, and a phrase about them: a larger accumulation and, if none
    fits, also a smaller batch, never a larger one."""
    if before == after:
        return (), ""
    batch_name, accumulation_name = spec.role("batch_size", params), spec.role("grad_accum", params)
    batch = None if batch_name is None else whole(params[batch_name])
    accumulation = None if accumulation_name is None else whole(params[accumulation_name])
    if accumulation_name is None or accumulation is None or accumulation < 1:
        return (), ", so that the effective batch becomes smaller (the profile has no gradient accumulation)"
    size = 1 if batch is None else batch
    names = (batch_name or "", accumulation_name)
    product = size * accumulation * share(spec, names, before) / share(spec, names, after)
    fitted = fit(product, size, grain(spec, names, accumulation, before, after))
    if fitted is None:
        return (), ", so that the effective batch becomes smaller (no multiple is small enough)"
    changes = [
        Change(accumulation_name, params[accumulation_name], like(params[accumulation_name], fitted.accumulation))
    ]
    words = f"{accumulation_name} {accumulation} → {fitted.accumulation}"
    if batch_name is not None and batch is not None and fitted.batch != batch:
        changes.append(Change(batch_name, params[batch_name], like(params[batch_name], fitted.batch)))
        words += f" and {batch_name} {batch} → {fitted.batch}"
    if batch is None:
        return tuple(changes), f", with {words}"
    was = size * accumulation * share(spec, names, before)
    now = fitted.batch * fitted.accumulation * share(spec, names, after)
    product_words = f"stays {float(now):g}" if now == was else f"becomes {float(now):g} instead of {float(was):g}"
    return tuple(changes), f", with {words}, so that the effective batch {product_words}"


def nccl_debug(context: ActionContext) -> Result:
    """Enable debug logs of NCCL and PyTorch for one attempt."""
    if context.spec.ranks_on(len(context.machine.gpus)) < 2:
        return SkippedAction("nccl_debug", "the run has a single process, which does not communicate")
    return AppliedAction("nccl_debug", "switched NCCL's debugging on", effect=Effect(env=NCCL_DEBUG_ENV))


def wait_cool(context: ActionContext) -> Result:
    """Wait until every GPU of the run is well below its throttling temperature."""
    if not context.machine.gpus:
        return SkippedAction("wait_cool", "the run has no GPUs")
    precondition = Precondition("cool", limit_seconds=context.argument or 900.0, margin_celsius=COOL_MARGIN_CELSIUS)
    return AppliedAction("wait_cool", "waited for the GPUs to cool down", effect=Effect(preconditions=(precondition,)))


def wait_disk(context: ActionContext) -> Result:
    """Wait until the disk has room for that many checkpoints."""
    if context.spec.checkpoints is None:
        return SkippedAction("wait_disk", "the profile names no checkpoints")
    if not context.machine.sees_checkpoints:
        return SkippedAction("wait_disk", ELSEWHERE)
    sizes = [info.size_bytes for info in context.checkpoints if info.size_bytes]
    if not sizes:
        precondition = Precondition(
            "room", limit_seconds=ROOM_LIMIT_SECONDS, bytes_needed=context.spec.disk_bytes or ROOM_BYTES
        )
        return AppliedAction(
            "wait_disk", "waited for room on the disk of the checkpoints", effect=Effect(preconditions=(precondition,))
        )
    count = int(context.argument or 2)
    precondition = Precondition("disk", limit_seconds=DISK_LIMIT_SECONDS, bytes_needed=count * max(sizes))
    noun = "a checkpoint" if count == 1 else f"{count} checkpoints"
    return AppliedAction("wait_disk", f"waited for room for {noun}", effect=Effect(preconditions=(precondition,)))


def prune_checkpoints(context: ActionContext) -> Result:
    """Remove checkpoints of the run's course that are older than its newest valid ones."""
    name, keep = "prune_checkpoints", int(context.argument or 3)
    if context.spec.checkpoints is None:
        return SkippedAction(name, "the profile names no checkpoints")
    if not context.machine.sees_checkpoints:
        return SkippedAction(name, ELSEWHERE)
    if context.machine.no_pruning is not None:
        return SkippedAction(name, context.machine.no_pruning)
    if sum(info.valid for info in context.checkpoints) <= keep:
        return SkippedAction(name, f"there are no more than {keep} valid checkpoints")
    precondition = Precondition("prune", limit_seconds=PRUNE_LIMIT_SECONDS, keep=keep)
    note = f"removed the checkpoints older than the newest {keep} valid ones"
    return AppliedAction(name, note, effect=Effect(preconditions=(precondition,)))


def notify(context: ActionContext) -> Result:
    """Send a notification as configured in the policy."""
    if not context.machine.notifies:
        return SkippedAction("notify", "the policy has neither a command nor a webhook (notify)")
    return AppliedAction("notify", "sent a notification", effect=Effect(notify=True))
