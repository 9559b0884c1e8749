"""What recovery may change: pure functions from a run's parameters to other parameters.

An action never guesses: where the profile has no such parameter, or its value is none that it understands, it is
skipped and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gputui.recovery import machine_actions
from gputui.recovery.action_results import (
    AppliedAction,
    Change,
    Params,
    Result,
    SkippedAction,
    apply_changes,
    like,
    number,
    show,
    switched_on,
    unmapped,
    whole,
)
from gputui.recovery.batches import BATCH_FACTOR, effective, grain, shrink
from gputui.recovery.machine_actions import Case, ranks
from gputui.runs.spec import RunSpec

__all__ = [
    "ACTIONS",
    "ActionKind",
    "AppliedAction",
    "Change",
    "Result",
    "SkippedAction",
    "apply_changes",
    "tuned_by_study",
]

FIRST_CLIP = 1.0  # the usual gradient norm to clip at, where a script has clipping switched off


def tuned_by_study(spec: RunSpec, applied: AppliedAction) -> str | None:
    """A parameter that the action would change although the run's study tunes it; None if there is none."""
    return next((change.parameter for change in applied.changes if change.parameter in spec.tuned), None)


def shrink_batch(case: Case) -> Result:
    """Lower the batch to at most 0.75 of its size, and raise the accumulation so that their product stays."""
    spec, params = case.spec, case.params
    name = spec.role("batch_size", params)
    if name is None:
        return unmapped("shrink_batch", "batch_size")
    batch = whole(params[name])
    if batch is None or batch < 1:
        return SkippedAction("shrink_batch", f"{name} is {show(params[name])}, not a whole number of at least 1")
    if batch == 1:
        return SkippedAction("shrink_batch", f"{name} is 1 already")
    accumulation_name = spec.role("grad_accum", params)
    accumulation = None if accumulation_name is None else whole(params[accumulation_name])
    count = ranks(spec, len(case.around.gpus))
    if accumulation_name is None or accumulation is None or accumulation < 1:
        if spec.tuned:
            return SkippedAction("shrink_batch", "the effective batch would change, and trials must stay comparable")
        step = grain(spec, (name, None), 1, count, count).batch
        largest = math.floor(BATCH_FACTOR * batch) if case.below is None else case.below - 1
        smaller = max(1, largest) // step * step
        if smaller < 1 or smaller >= (case.below or batch):
            return SkippedAction("shrink_batch", f"{name} is {batch}, and no smaller one may be tried")
        note = (
            f"lowered {name} {batch} → {smaller}; the profile has no gradient accumulation to make up for it, "
            "so that the effective batch changes"
        )
        return AppliedAction("shrink_batch", note, (Change(name, params[name], like(params[name], smaller)),))
    names = (name, accumulation_name)
    step_sizes = grain(spec, names, accumulation, count, count)
    found = shrink(batch, accumulation, step_sizes, case.below)
    if found is None:
        return SkippedAction("shrink_batch", f"{name} is {batch}, and no smaller one may be tried")
    if spec.tuned and not found.is_near:
        return SkippedAction("shrink_batch", "no whole pair keeps the effective batch, and trials must stay comparable")
    before, _ = effective(spec, names, batch * accumulation, count)
    after, of_whom = effective(spec, names, found.batch * found.accumulation, count)
    size = f"stays {after}" if after == before else f"becomes {after} instead of {before}"
    verb = "raised" if found.accumulation > accumulation else "set"
    note = (
        f"lowered {name} {batch} → {found.batch} and {verb} {accumulation_name} {accumulation} → {found.accumulation}, "
        f"so that the effective batch {size}{of_whom}"
        + ("" if found.is_near else ", as no whole pair that may be used keeps it within 2 %")
    )
    changes = (
        Change(name, params[name], like(params[name], found.batch)),
        Change(accumulation_name, params[accumulation_name], like(params[accumulation_name], found.accumulation)),
    )
    return AppliedAction("shrink_batch", note, changes)


def gradient_checkpointing(spec: RunSpec, params: Params, argument: float | None) -> Result:
    """Switch gradient checkpointing on: less memory for more computing."""
    return _switch_on("gradient_checkpointing", spec, params)


def cpu_offload(spec: RunSpec, params: Params, argument: float | None) -> Result:
    """Keep the optimizer's state, or what the script offers, in the host's memory."""
    return _switch_on("cpu_offload", spec, params)


def longer_timeout(spec: RunSpec, params: Params, argument: float | None) -> Result:
    """Multiply the timeout of collectives, by 2 by default."""
    name = spec.role("timeout", params)
    if name is None:
        return unmapped("longer_timeout", "timeout")
    value = number(params[name])
    if value is None or not value > 0:
        return SkippedAction("longer_timeout", f"{name} is {show(params[name])}, not a number above 0")
    longer = value * (argument or 2.0)
    after = like(params[name], math.ceil(longer))
    return AppliedAction("longer_timeout", f"raised {name} {value:g} → {after}", (Change(name, params[name], after),))


def lower_lr(spec: RunSpec, params: Params, argument: float | None) -> Result:
    """Divide the learning rate, by 10 by default."""
    return _divide("lower_lr", "lr", spec, params, argument or 10.0)


def tighter_clip(spec: RunSpec, params: Params, argument: float | None) -> Result:
    """Divide the largest gradient norm, by 2 by default; where clipping is off, switch it on at 1.0."""
    name = spec.role("grad_clip", params)
    if name is not None and (params[name] is None or number(params[name]) == 0.0):
        changes = (Change(name, params[name], FIRST_CLIP),)
        return AppliedAction("tighter_clip", f"switched gradient clipping on ({name} {FIRST_CLIP})", changes)
    return _divide("tighter_clip", "grad_clip", spec, params, argument or 2.0)


def fewer_workers(spec: RunSpec, params: Params, argument: float | None) -> Result:
    """Halve the data loader's workers."""
    name = spec.role("num_workers", params)
    if name is None:
        return unmapped("fewer_workers", "num_workers")
    workers = whole(params[name])
    if workers is None or workers < 0:
        return SkippedAction("fewer_workers", f"{name} is {show(params[name])}, not a number of workers")
    if workers == 0:
        return SkippedAction("fewer_workers", f"{name} is 0 already")
    after = workers // 2
    changes = (Change(name, params[name], like(params[name], after)),)
    return AppliedAction("fewer_workers", f"lowered {name} {workers} → {after}", changes)


def restart(spec: RunSpec, params: Params, argument: float | None) -> Result:
    """Start again with nothing changed."""
    return AppliedAction("restart", "changed nothing")


def new_port(spec: RunSpec, params: Params, argument: float | None) -> Result:
    """Start again; every attempt gets a free port."""
    return AppliedAction("new_port", "took another port")


def wait(spec: RunSpec, params: Params, argument: float | None) -> Result:
    """Start again after so many seconds."""
    return AppliedAction("wait", "changed nothing")


@dataclass(frozen=True, slots=True)
class ActionKind:
    """An action as ladders name it.

    Attributes:
        help: one sentence for the documentation.
        apply: what it does to parameters; apply_here: the same for those that need to know of the machine. Both are
            None for those that say where to resume, or to stop.
        argument: what its number means, None if it takes none; default: where it is left out; least: the smallest.
        whole: its number must be a whole one.
    """

    name: str
    help: str
    apply: Callable[[RunSpec, Params, float | None], Result] | None = None
    argument: str | None = None
    default: float | None = None
    least: float = 0.0
    whole: bool = False
    apply_here: Callable[[Case], Result] | None = None


ACTIONS: dict[str, ActionKind] = {
    kind.name: kind
    for kind in (
        ActionKind("restart", "start again from the newest valid checkpoint, changing nothing", restart),
        ActionKind(
            "shrink_batch",
            "lower the batch size to at most 0.75 of its value and raise gradient accumulation, so that the effective "
            "batch stays within 2 %",
            apply_here=shrink_batch,
        ),
        ActionKind("gradient_checkpointing", "enable gradient checkpointing", gradient_checkpointing),
        ActionKind("cpu_offload", "enable CPU offloading", cpu_offload),
        ActionKind("lower_lr", "divide the learning rate", lower_lr, "divisor", 10.0, 1.01),
        ActionKind(
            "tighter_clip",
            "divide the gradient clipping norm; if clipping is off, enable it at 1.0",
            tighter_clip,
            "divisor",
            2.0,
            1.01,
        ),
        ActionKind("fewer_workers", "halve the number of data loader workers", fewer_workers),
        ActionKind(
            "rollback",
            "resume that many valid checkpoints before the newest, and strike off the later ones",
            None,
            "checkpoints",
            1,
            1,
            True,
        ),
        ActionKind("new_port", "start again with another network port", new_port),
        ActionKind("longer_timeout", "multiply the timeout of collectives", longer_timeout, "factor", 2.0, 1.01),
        ActionKind(
            "nccl_debug",
            "enable NCCL's log and PyTorch's record of collectives, for one attempt",
            apply_here=machine_actions.nccl_debug,
        ),
        ActionKind(
            "exclude_gpu",
            "quarantine the failed GPU and continue with a free one, or with fewer if `min_gpus` allows it, or with "
            "the first that others free",
            apply_here=machine_actions.exclude_gpu,
        ),
        ActionKind("wait", "start again after a delay", wait, "seconds", 60.0),
        ActionKind(
            "wait_cool",
            "start again when the run's GPUs are 15 °C below the temperature at which they throttle, or after a delay",
            None,
            "seconds",
            900.0,
            1.0,
            apply_here=machine_actions.wait_cool,
        ),
        ActionKind(
            "wait_disk",
            "start again when the disk has room for that many checkpoints; give up after 6 h",
            None,
            "checkpoints",
            2,
            1,
            True,
            machine_actions.wait_disk,
        ),
        ActionKind(
            "prune_checkpoints",
            "remove old checkpoints of the run's course, keeping the newest valid ones; in no built-in policy",
            None,
            "checkpoints kept",
            3,
            1,
            True,
            machine_actions.prune_checkpoints,
        ),
        ActionKind(
            "notify",
            "send the notification that `notify` of the policy describes; goes with another action",
            None,
            apply_here=machine_actions.notify,
        ),
        ActionKind("stop", "stop the run and give the reason"),
    )
}
"""Every action by its name."""


def _divide(action: str, role: str, spec: RunSpec, params: Params, divisor: float) -> Result:
    name = spec.role(role, params)
    if name is None:
        return unmapped(action, role)
    value = number(params[name])
    if value is None or not value > 0:
        return SkippedAction(action, f"{name} is {show(params[name])}, not a number above 0")
    after = float(f"{value / divisor:.12g}")
    if after == 0:
        return SkippedAction(action, f"{name} is {value:g} already")
    changes = (Change(name, params[name], after),)
    return AppliedAction(action, f"lowered {name} {value:g} → {after:g}", changes)


def _switch_on(action: str, spec: RunSpec, params: Params) -> Result:
    name = spec.role(action, params)
    if name is None:
        return unmapped(action, action)
    value = params[name]
    switched = switched_on(value)
    if switched is None:
        return SkippedAction(action, f"{name} is {show(value)}, neither on nor off")
    if switched == value:
        return SkippedAction(action, f"{name} is on already")
    return AppliedAction(action, f"turned {name} on", (Change(name, value, switched),))
