"""Recovery actions on parameters: pure functions from a run's parameters to changed ones.

An action never guesses: without the parameter in the profile, or with an unexpected value, it is skipped with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct

from gputui.recovery import machine_actions
from gputui.recovery.batches import BATCH_FACTOR, effective, grain, shrink
from gputui.recovery.machine_actions import (
    ActionContext,
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
from gputui.runs.launchers import LAUNCHERS
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

FIRST_CLIP = 1.0  # the usual clipping norm, for scripts whose clipping is off


def tuned_by_study(spec: RunSpec, applied: AppliedAction) -> str | None:
    """A changed parameter that the run's study tunes; None if there is none."""
    return next((change.parameter for change in applied.changes if change.parameter in spec.tuned), None)


def shrink_batch(context: ActionContext) -> Result:
    """Reduce the batch to at most 0.75 of its size, and raise the accumulation to keep their product."""
    spec, params = context.spec, context.params
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
    count = spec.ranks_on(len(context.machine.gpus))
    if accumulation_name is None or accumulation is None or accumulation < 1:
        if spec.tuned:
            return SkippedAction("shrink_batch", "the effective batch would change, and trials must stay comparable")
        step = grain(spec, (name, None), 1, count, count).batch
        largest = math.floor(BATCH_FACTOR * batch) if context.below is None else context.below - 1
        smaller = max(1, largest) // step * step
        if smaller < 1 or smaller >= (context.below or batch):
            return SkippedAction("shrink_batch", f"{name} is {batch}, and no smaller one may be tried")
        note = (
            f"lowered {name} {batch} → {smaller}; the profile has no gradient accumulation to make up for it, "
            "so that the effective batch changes"
        )
        return AppliedAction("shrink_batch", note, (Change(name, params[name], like(params[name], smaller)),))
    names = (name, accumulation_name)
    step_sizes = grain(spec, names, accumulation, count, count)
    shrunk = shrink(batch, accumulation, step_sizes, context.below)
    if shrunk is None:
        return SkippedAction("shrink_batch", f"{name} is {batch}, and no smaller one may be tried")
    if spec.tuned and not shrunk.is_near:
        return SkippedAction("shrink_batch", "no whole pair keeps the effective batch, and trials must stay comparable")
    before, _ = effective(spec, names, batch * accumulation, count)
    after, of_whom = effective(spec, names, shrunk.batch * shrunk.accumulation, count)
    size = f"stays {after}" if after == before else f"becomes {after} instead of {before}"
    verb = "raised" if shrunk.accumulation > accumulation else "set"
    note = (
        f"lowered {name} {batch} → {shrunk.batch} and {verb} {accumulation_name} {accumulation} → "
        f"{shrunk.accumulation}, so that the effective batch {size}{of_whom}"
        + ("" if shrunk.is_near else ", as no whole pair that may be used keeps it within 2 %")
    )
    changes = (
        Change(name, params[name], like(params[name], shrunk.batch)),
        Change(accumulation_name, params[accumulation_name], like(params[accumulation_name], shrunk.accumulation)),
    )
    return AppliedAction("shrink_batch", note, changes)


def gradient_checkpointing(spec: RunSpec, params: Params, argument: float | None) -> Result:
    """Enable gradient checkpointing: less memory, more compute."""
    return _switch_on("gradient_checkpointing", spec, params)


def cpu_offload(spec: RunSpec, params: Params, argument: float | None) -> Result:
    """Enable offloading to host memory."""
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
    """Divide the clipping norm, by 2 by default; enable clipping at FIRST_CLIP if it is off."""
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
    """Restart without changes."""
    return AppliedAction("restart", "changed nothing")


def new_port(spec: RunSpec, params: Params, argument: float | None) -> Result:
    """Restart; every attempt gets a free port for its ranks to meet at."""
    if not LAUNCHERS[spec.launcher].starts_ranks:
        return SkippedAction("new_port", f"the launcher {spec.launcher} takes no port; the script chooses its own")
    return AppliedAction("new_port", "took another port")


def wait(spec: RunSpec, params: Params, argument: float | None) -> Result:
    """Restart after a delay, which the ladder's argument sets."""
    return AppliedAction("wait", "changed nothing")


class ActionKind(Struct, frozen=True):
    """An action of a recovery ladder.

    Attributes:
        help: one sentence for the documentation.
        apply: changes parameters; apply_here: the same with the state of the machine. Both are None for actions that
            choose a checkpoint or stop.
        argument: meaning of its number, None if it takes none; default: its default; least: its minimum.
        whole: its number must be an integer.
    """

    name: str
    help: str
    apply: Callable[[RunSpec, Params, float | None], Result] | None = None
    argument: str | None = None
    default: float | None = None
    least: float = 0.0
    whole: bool = False
    apply_here: Callable[[ActionContext], Result] | None = None


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
        ActionKind("new_port", "start again with another port, if the launcher takes one", new_port),
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
