"""Actions that need more than parameters: which GPU failed and which are free, room on the disk, the environment.

Pure like the others: what is known of the machine is passed in, and what is to be done to it comes out as an `Effect`
for the agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gputui.recovery.action_results import (
    AppliedAction,
    Change,
    Effect,
    Params,
    Precondition,
    Result,
    SkippedAction,
    like,
    whole,
)
from gputui.recovery.batches import fit, grain, share
from gputui.recovery.checkpoints import CheckpointInfo
from gputui.recovery.classify import Incident
from gputui.runs.spec import RunSpec

# Below the temperature where the clocks are lowered; a GPU that stops working cools by as much within a minute.
COOL_MARGIN_CELSIUS = 15.0
DISK_LIMIT_SECONDS = 6 * 3600.0
# Before the first checkpoint the size of one is unknown.
ROOM_BYTES = 1 << 30
ROOM_LIMIT_SECONDS = 900.0
PRUNE_LIMIT_SECONDS = 600.0

# NCCL's own log, and PyTorch's record of the last collectives, written when one of them times out
# (docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; pytorch.org/docs, "Flight Recorder").
NCCL_DEBUG_ENV = {
    "NCCL_DEBUG": "INFO",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "{run_dir}/nccl_trace_rank_",
}


ELSEWHERE = "only the run's target sees its checkpoints"


@dataclass(frozen=True, slots=True)
class MachineContext:
    """What is known of the machine when an attempt has ended.

    Attributes:
        gpus: UUIDs that the attempt held, in the order of its local ranks.
        spares: UUIDs of free, healthy GPUs that the run may have instead, the best first.
        later: UUIDs of healthy GPUs that it may have instead once others have done with them.
        notifies: the run's policy sends notifications.
        no_pruning: why none of the checkpoints may be removed, None where old ones may.
        sees_checkpoints: they, and the disk that they are on, can be seen from here.
    """

    gpus: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    notifies: bool = False
    no_pruning: str | None = None
    sees_checkpoints: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """One action at one incident. ``below``: the run did not start with this batch size, so that a smaller one is
    tried."""

    incident: Incident
    spec: RunSpec
    params: Params
    argument: float | None = None
    checkpoints: Sequence[CheckpointInfo] = ()
    around: MachineContext = field(default_factory=MachineContext)
    below: int | None = None


def exclude_gpu(case: Case) -> Result:
    """Quarantine the faulty GPU; go on with a free one, else with fewer where the profile allows it, else with the
    first that others free."""
    name, gpus, spec = "exclude_gpu", case.around.gpus, case.spec
    if not gpus:
        return SkippedAction(name, "the run has no GPUs")
    if case.incident.contained:
        return SkippedAction(name, "the error left the GPU usable")
    faulty = faulty_gpu(case.incident, gpus, spec)
    if faulty is None:
        return SkippedAction(name, "which GPU failed is not known")
    index = faulty if faulty.startswith(("GPU-", "MIG-")) else f"GPU {faulty}"
    if case.around.spares:
        effect = Effect(quarantine=(faulty,), replacements=case.around.spares[:1])
        return AppliedAction(name, f"took another GPU in place of {index}", effect=effect)
    result = go_on_with_fewer(spec, case.params, len(gpus), len(gpus) - 1, index)
    if isinstance(result, SkippedAction) and case.around.later:
        return AppliedAction(name, f"waited for another GPU in place of {index}", effect=Effect(quarantine=(faulty,)))
    return replace(result, effect=result.effect | Effect(quarantine=(faulty,)))


def go_on_with_fewer(spec: RunSpec, params: Params, before: int, left: int, without: str) -> Result:
    """What exclude_gpu does where no other GPU can be had: ``left`` GPUs in place of ``before``, where the profile
    allows so few. ``without`` names those that failed."""
    name, least = "exclude_gpu", spec.gpus.min_count
    if least is None:
        return SkippedAction(name, "no other GPU is free, and the profile allows no fewer (min_gpus)")
    if left < max(1, least):
        return SkippedAction(name, f"no other GPU is free, and {left} would be fewer than min_gpus {least}")
    changes, words = for_fewer_ranks(spec, params, ranks(spec, before), ranks(spec, left))
    note = f"went on with {left} of {before} GPUs, without {without}{words}"
    return AppliedAction(name, note, changes, Effect(gpu_count=left))


def faulty_gpu(incident: Incident, gpus: Sequence[str], spec: RunSpec) -> str | None:
    """The GPU that an incident is about: what the driver named, else that of the rank it began on."""
    if incident.gpu is not None:
        return incident.gpu if incident.gpu in gpus else None
    if len(gpus) == 1:
        return gpus[0]
    has_one_each = incident.rank is not None and ranks(spec, len(gpus)) == len(gpus)
    return gpus[incident.rank] if has_one_each and incident.rank is not None and incident.rank < len(gpus) else None


def ranks(spec: RunSpec, gpus: int) -> int:
    """How many ranks a run has on so many GPUs: as many per GPU as its profile has."""
    asked = len(spec.gpus.uuids) or spec.gpus.count
    return max(1, spec.nproc * gpus // asked) if asked and gpus else spec.nproc


def for_fewer_ranks(spec: RunSpec, params: Params, before: int, after: int) -> tuple[tuple[Change, ...], str]:
    """What keeps the effective batch over all ranks, and that in words: a larger accumulation, and where none fits
    a smaller batch as well, never a larger one."""
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
    found = fit(product, size, grain(spec, names, accumulation, before, after))
    if found is None:
        return (), ", so that the effective batch becomes smaller (no multiple is small enough)"
    changes = [
        Change(accumulation_name, params[accumulation_name], like(params[accumulation_name], found.accumulation))
    ]
    words = f"{accumulation_name} {accumulation} → {found.accumulation}"
    if batch_name is not None and batch is not None and found.batch != batch:
        changes.append(Change(batch_name, params[batch_name], like(params[batch_name], found.batch)))
        words += f" and {batch_name} {batch} → {found.batch}"
    if batch is None:
        return tuple(changes), f", with {words}"
    was = size * accumulation * share(spec, names, before)
    now = found.batch * found.accumulation * share(spec, names, after)
    kept = f"stays {float(now):g}" if now == was else f"becomes {float(now):g} instead of {float(was):g}"
    return tuple(changes), f", with {words}, so that the effective batch {kept}"


def nccl_debug(case: Case) -> Result:
    """Let NCCL and PyTorch write down what they do, for one attempt."""
    if ranks(case.spec, len(case.around.gpus)) < 2:
        return SkippedAction("nccl_debug", "the run has a single process, which does not communicate")
    return AppliedAction("nccl_debug", "switched NCCL's debugging on", effect=Effect(env=NCCL_DEBUG_ENV))


def wait_cool(case: Case) -> Result:
    """Wait until every GPU of the run is well below the temperature where its clocks are lowered."""
    if not case.around.gpus:
        return SkippedAction("wait_cool", "the run has no GPUs")
    precondition = Precondition("cool", limit_seconds=case.argument or 900.0, margin_celsius=COOL_MARGIN_CELSIUS)
    return AppliedAction("wait_cool", "waited for the GPUs to cool down", effect=Effect(preconditions=(precondition,)))


def wait_disk(case: Case) -> Result:
    """Wait until there is room for so many checkpoints."""
    if case.spec.checkpoints is None:
        return SkippedAction("wait_disk", "the profile names no checkpoints")
    if not case.around.sees_checkpoints:
        return SkippedAction("wait_disk", ELSEWHERE)
    sizes = [info.size_bytes for info in case.checkpoints if info.size_bytes]
    if not sizes:
        precondition = Precondition(
            "room", limit_seconds=ROOM_LIMIT_SECONDS, bytes_needed=case.spec.disk_bytes or ROOM_BYTES
        )
        return AppliedAction(
            "wait_disk", "waited for room on the disk of the checkpoints", effect=Effect(preconditions=(precondition,))
        )
    count = int(case.argument or 2)
    precondition = Precondition("disk", limit_seconds=DISK_LIMIT_SECONDS, bytes_needed=count * max(sizes))
    noun = "a checkpoint" if count == 1 else f"{count} checkpoints"
    return AppliedAction("wait_disk", f"waited for room for {noun}", effect=Effect(preconditions=(precondition,)))


def prune_checkpoints(case: Case) -> Result:
    """Remove the checkpoints of the run's course that were written before its newest valid ones."""
    name, keep = "prune_checkpoints", int(case.argument or 3)
    if case.spec.checkpoints is None:
        return SkippedAction(name, "the profile names no checkpoints")
    if not case.around.sees_checkpoints:
        return SkippedAction(name, ELSEWHERE)
    if case.around.no_pruning is not None:
        return SkippedAction(name, case.around.no_pruning)
    if sum(info.valid for info in case.checkpoints) <= keep:
        return SkippedAction(name, f"there are no more than {keep} valid checkpoints")
    precondition = Precondition("prune", limit_seconds=PRUNE_LIMIT_SECONDS, keep=keep)
    note = f"removed the checkpoints older than the newest {keep} valid ones"
    return AppliedAction(name, note, effect=Effect(preconditions=(precondition,)))


def notify(case: Case) -> Result:
    """Tell somebody, in the way that the policy says."""
    if not case.around.notifies:
        return SkippedAction("notify", "the policy has neither a command nor a webhook (notify)")
    return AppliedAction("notify", "sent a notification", effect=Effect(notify=True))
