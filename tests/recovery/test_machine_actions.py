"""Actions that look at the machine: what they do, and when they are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gputui.recovery.actions import ACTIONS, NCCL_DEBUG_ENV
from gputui.recovery.classify import Incident
from gputui.recovery.decide import decide
from gputui.recovery.effects import ActionContext, AppliedAction, Effect, MachineContext, Precondition, SkippedAction
from gputui.recovery.plans import AttemptReach, FailedAttempt
from gputui.recovery.policies import policy_from
from gputui.runs.checkpoint_formats import CheckpointInfo
from gputui.runs.spec import CheckpointSpec, GpuRequest, RunSpec
from tests.tables import table
from tests.texts import mentions

PARAMS = {"batch_size": 16, "grad_accum": 3, "timeout": 600, "cpu_offload": False}
LOST = Incident("gpu_lost", 1, 40, summary="rank 1 lost its GPU", fingerprint="f" * 16, evidence_lines=(), gpu="GPU-b")

TWO = MachineContext(gpus=("GPU-a", "GPU-b"))


def spec(gpus: int = 2, **values: Any) -> RunSpec:
    request = GpuRequest(gpus, min_count=values.pop("min_gpus", None))
    checkpoints = values.pop("checkpoints", CheckpointSpec("/c", "step_*.pt"))
    nproc = values.pop("nproc", gpus or 1)
    return RunSpec(
        name="job", launcher="torchrun", program=("t.py",), workdir="/w", python="/p", nproc=nproc, gpus=request,
        checkpoints=checkpoints, **values,
    )  # fmt: skip


def checkpoint(step: int, size: int | None = 100, valid: bool = True) -> CheckpointInfo:
    return CheckpointInfo(Path(f"/c/step_{step}.pt"), step, valid, "", size)


CASE = ActionContext(
    LOST, spec(), PARAMS, argument=None, checkpoints=(checkpoint(40), checkpoint(30, 120)), machine=TWO
)


def act(name: str, case: ActionContext = CASE, **changes: Any) -> AppliedAction | SkippedAction:
    apply = ACTIONS[name].apply
    assert apply is not None
    return apply(replace(case, **changes))


def plan(recovery: dict[str, Any], machine: MachineContext, run: RunSpec, incident: Incident = LOST) -> Any:
    policy = policy_from(recovery)
    failed = FailedAttempt(
        run_id="j", number=1, incident=incident, reach=AttemptReach(last_step=40), spec=run, params=PARAMS,
        policy=policy, checkpoints=CASE.checkpoints, machine=machine,
    )  # fmt: skip
    return decide(failed)


def test_a_free_gpu_takes_the_place_of_the_faulty_one() -> None:
    result = act("exclude_gpu", machine=replace(TWO, spares=("GPU-c", "GPU-d")))
    assert isinstance(result, AppliedAction)
    assert result.changes == ()
    assert result.effect == Effect(quarantine=("GPU-b",), replacements=("GPU-c",))


def test_with_fewer_gpus_the_effective_batch_stays() -> None:
    result = act("exclude_gpu", spec=spec(min_gpus=1))
    assert isinstance(result, AppliedAction)
    assert [(change.parameter, change.after) for change in result.changes] == [("grad_accum", 6)]
    assert result.effect == Effect(quarantine=("GPU-b",), gpu_count=1)
    assert "effective batch stays 96" in result.note


def test_where_others_have_all_other_gpus_it_waits_for_one_of_them() -> None:
    result = act("exclude_gpu", machine=replace(TWO, later=("GPU-c",)))
    assert isinstance(result, AppliedAction)
    assert result.effect == Effect(quarantine=("GPU-b",))
    fewer = act("exclude_gpu", spec=spec(min_gpus=1), machine=replace(TWO, later=("GPU-c",)))
    assert fewer.effect == Effect(quarantine=("GPU-b",), gpu_count=1)


@table("changes, why, quarantined", [
    ({}, "no other GPU is free, and the profile allows no fewer (min_gpus)", True),
    ({"spec": spec(min_gpus=2)}, "no other GPU is free, and 1 would be fewer than min_gpus 2", True),
    ({"machine": MachineContext()}, "the run has no GPUs", False),
    ({"incident": replace(LOST, contained=True)}, "the error left the GPU usable", False),
    ({"incident": replace(LOST, gpu=None, rank=None)}, "which GPU failed is not known", False),
    ({"incident": replace(LOST, gpu="GPU-z")}, "which GPU failed is not known", False),
    ({"incident": replace(LOST, gpu=None), "spec": spec(nproc=4)}, "which GPU failed is not known", False),
])  # fmt: skip
def test_when_no_gpu_is_excluded(changes: dict[str, Any], why: str, quarantined: bool) -> None:
    effect = Effect(quarantine=("GPU-b",)) if quarantined else Effect()
    assert act("exclude_gpu", **changes) == SkippedAction("exclude_gpu", why, effect)


def test_waiting_for_the_disk() -> None:
    assert act("wait_disk", argument=3.0).effect.preconditions == (
        Precondition("disk", limit_seconds=21600.0, bytes_needed=360),
    )
    assert isinstance(act("wait_disk", spec=spec(checkpoints=None)), SkippedAction)
    # Without checkpoints the needed room is unknown: any room will do, and the wait is as short as a plain one.
    assert act("wait_disk", checkpoints=()).effect.preconditions == (
        Precondition("room", limit_seconds=900.0, bytes_needed=1 << 30),
    )
    larger = replace(spec(), disk_bytes=7 << 30)
    assert act("wait_disk", spec=larger, checkpoints=()).effect.preconditions[0].bytes_needed == 7 << 30


def test_pruning_leaves_the_newest_valid_ones() -> None:
    (precondition,) = act("prune_checkpoints", argument=1.0).effect.preconditions
    assert (precondition.kind, precondition.keep) == ("prune", 1)
    outside = replace(TWO, no_pruning="the checkpoints lie outside")
    for changes, why in (
        ({"argument": 2.0}, "there are no more than 2 valid checkpoints"),
        ({"checkpoints": (checkpoint(40), checkpoint(30, valid=False))}, "there are no more than 1"),
        ({"spec": spec(checkpoints=None)}, "the profile names no checkpoints"),
        ({"machine": outside}, "the checkpoints lie outside"),
    ):
        result = act("prune_checkpoints", **{"argument": 1.0, **changes})
        assert isinstance(result, SkippedAction)
        assert result.why.startswith(why)


# --- in a plan -----------------------------------------------------------------------------------------------------


def test_a_faulty_gpu_is_quarantined_when_the_run_stops_for_it() -> None:
    plan_of_standard = plan({"policy": "standard"}, TWO, spec())
    assert (plan_of_standard.verdict, plan_of_standard.effect.quarantine) == ("stop", ("GPU-b",))
    assert "min_gpus" in plan_of_standard.reason


def test_a_gpu_that_the_run_goes_on_with_is_not_quarantined() -> None:
    ecc = replace(LOST, kind="ecc")
    plan_of_standard = plan({"policy": "standard"}, TWO, spec(), ecc)
    assert (plan_of_standard.verdict, plan_of_standard.effect) == ("retry", Effect())
    contained = plan({"policy": "standard"}, replace(TWO, spares=("GPU-c",)), spec(), replace(ecc, contained=True))
    assert contained.effect == Effect()
    assert mentions(contained.reason, "GPU usable")


def test_debugging_is_for_the_next_attempt_only() -> None:
    assert act("nccl_debug").effect == Effect(env=NCCL_DEBUG_ENV)
    assert isinstance(act("nccl_debug", spec=spec(0, nproc=1), machine=MachineContext()), SkippedAction)


def test_parameters_for_offloading_and_patience() -> None:
    for name, expected in (("cpu_offload", True), ("longer_timeout", 1200)):
        result = act(name)
        assert isinstance(result, AppliedAction)
        assert result.changes[0].after == expected
        assert isinstance(act(name, params={}), SkippedAction)
    assert isinstance(act("longer_timeout", params={"timeout": "10m"}), SkippedAction)
