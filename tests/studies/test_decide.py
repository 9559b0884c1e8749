"""Decisions about trials and studies, without a store or a process."""

from __future__ import annotations

import math
import random
from typing import Any

from msgspec.structs import replace

from gputui.recovery.classify import Incident
from gputui.recovery.decide import decide
from gputui.recovery.plans import AttemptReach, FailedAttempt
from gputui.recovery.policies import policy_from
from gputui.runs.spec import GpuRequest, RunSpec
from gputui.store.run_states import RunState
from gputui.store.studies import TrialRecord, TrialState
from gputui.studies.decide import (
    MOST_STARTS,
    Next,
    RunEnd,
    Usage,
    constraint_values,
    fruitless_count,
    grid_point,
    judge_trial,
    next_move,
    room_for,
    trial_spec,
    trials_on_gpu,
    trials_to_rerun,
)
from gputui.studies.failures import SAME_OF_SPACE, same_cause
from gputui.studies.pbt import first_point, perturb
from gputui.studies.rungs import ObjectiveCurve, ObjectivePoint, objective_value
from gputui.studies.samplers import make_distribution
from gputui.studies.spec import Budget, Constraints, Dimension, Objective, PbtSpec, SamplerSpec, StudySpec
from tests.tables import table
from tests.texts import mentions

LR = Dimension("lr", "choice", choices=(0.1, 0.2))
LOSS = Objective("loss")
BASE = RunSpec(
    "net", "python", ("net.py",), "/", "/usr/bin/python", params={"lr": 0.3, "batch_size": 16, "grad_accum": 3}
)
FAULT = RunEnd(RunState.FAILED, "NCCL error", "nccl_error", has_stepped=True, has_checkpoints=True)


def study(**changes: Any) -> StudySpec:
    return StudySpec(**{"name": "s", "profile": "net", "space": (LR,), "objectives": (LOSS,), **changes})


def trial(number: int, state: TrialState, **changes: Any) -> TrialRecord:
    values: dict[str, Any] = {
        "study_id": "s-1", "number": number, "run_id": f"r-{number}", "state": state, "origin": "sampled",
        "params": {"lr": 0.1}, "rung": None, "values": (), "constraints": (), "reason": None, "parent": None,
        "generation": None, "starts": 1, "command_id": 1, "population": {}, "created_at": 0.0, "ended_at": None,
    }  # fmt: skip
    return TrialRecord(**{**values, **changes})


def points(*arguments: tuple[float, float, int]) -> list[ObjectivePoint]:
    curve = ObjectiveCurve()
    for position, value, attempt in arguments:
        curve.add(ObjectivePoint(position, int(position), value, attempt))
    return curve.points


DONE = trial(0, TrialState.COMPLETE)


LIVE = trial(1, TrialState.RUNNING)


def planned(spec: RunSpec, kind: str) -> Any:
    incident = Incident(kind, rank=None, step=None, summary="it", fingerprint="f", evidence_lines=())
    failed = FailedAttempt(
        run_id="r-1", number=1, incident=incident, reach=AttemptReach(last_step=10), spec=spec, params=spec.params,
        policy=policy_from(spec.recovery),
    )  # fmt: skip
    return decide(failed)


def test_what_an_attempt_repeats_counts_once() -> None:
    curve = points((1, 0.9, 1), (2, 0.1, 1), (3, 0.7, 1), (2, 0.8, 2), (3, 0.6, 2))
    assert [(point.position, point.value) for point in curve] == [(1, 0.9), (2, 0.8), (3, 0.6)]


@table(
    ("objective", "value"),
    [
        (Objective("a"), 1.0), (Objective("a", "maximize"), 4.0), (Objective("a", over="last"), 3.0),
        (Objective("a", over="mean of 2"), 3.5), (Objective("a", over="mean of 9"), 8 / 3),
    ],
)  # fmt: skip
def test_the_best_the_last_or_a_mean_counts(objective: Objective, value: float) -> None:
    assert objective_value(points((1, 1.0, 1), (2, 4.0, 1), (3, 3.0, 1)), objective) == value
    assert objective_value(points((1, 1.0, 1), (2, math.inf, 1)), objective) == math.inf


@table(
    ("end", "values", "verdict"),
    [
        (RunEnd(RunState.SUCCEEDED), [0.5], TrialState.COMPLETE),
        (RunEnd(RunState.SUCCEEDED), [None], TrialState.FAILED),
        (RunEnd(RunState.SUCCEEDED), [math.nan], TrialState.FAILED),
        (RunEnd(RunState.SUCCEEDED), [-math.inf], TrialState.FAILED),
        (RunEnd(RunState.STOPPED, "stopped"), [0.5], TrialState.STOPPED),
        (RunEnd(RunState.FAILED, "out of memory", "cuda_oom"), [0.5], TrialState.INFEASIBLE),
        (RunEnd(RunState.FAILED, "not a number", "nan_loss"), [0.5], TrialState.FAILED),
        (RunEnd(RunState.FAILED, "an error", "user_exception"), [0.5], TrialState.FAILED),
        (FAULT, [0.5], TrialState.LAUNCHING),
    ],
)
def test_a_run_that_ended_gives_its_trial_a_verdict(
    end: RunEnd, values: list[float | None], verdict: TrialState
) -> None:
    ruled = judge_trial(trial(0, TrialState.RUNNING), end, values, (), study())
    assert ruled.state is verdict
    expected = (0.5,) if verdict is TrialState.COMPLETE else ()
    assert ruled.values == expected
    assert (ruled.again is not None) == (verdict is TrialState.LAUNCHING)


def test_a_fault_of_the_machine_starts_the_same_point_again_a_few_times() -> None:
    running = trial(0, TrialState.RUNNING)
    assert judge_trial(running, FAULT, [None], (), study()).again == "resume"
    before = RunEnd(RunState.FAILED, "NCCL error", "nccl_error", has_checkpoints=True)
    assert judge_trial(running, before, [None], (), study()).again == "restart"
    tired = trial(0, TrialState.RUNNING, starts=MOST_STARTS)
    assert judge_trial(tired, FAULT, [None], (), study()).state is TrialState.FAILED


def test_a_trial_that_was_cut_short_is_pruned_however_its_run_ended() -> None:
    cut = trial(0, TrialState.PRUNING, reason="pruned at rung 1: 2nd of 2")
    for end in (RunEnd(RunState.STOPPED, "stopped"), RunEnd(RunState.FAILED, "killed", "killed")):
        ruled = judge_trial(cut, end, [0.5], (), study())
        assert (ruled.state, ruled.reason, ruled.values) == (TrialState.PRUNED, cut.reason, ())
    assert judge_trial(cut, RunEnd(RunState.SUCCEEDED), [0.5], (), study()).state is TrialState.COMPLETE
    stopping = trial(0, TrialState.STOPPING, reason="budget")
    assert judge_trial(stopping, RunEnd(RunState.STOPPED), [0.5], (), study()).reason == "budget"


def test_a_broken_constraint_makes_a_point_infeasible() -> None:
    spec = study(constraints=Constraints(memory_bytes=100, step_seconds=0.5))
    assert constraint_values(spec, 150, step_seconds=None) == (0.5, 0.0)
    done = trial(0, TrialState.RUNNING), RunEnd(RunState.SUCCEEDED), [1.0]
    broken, feasible, slow = (judge_trial(*done, excess, spec) for excess in ((0.5, -0.1), (-0.5, -0.1), (-0.5, 0.1)))
    assert (broken.state, feasible.state) == (TrialState.INFEASIBLE, TrialState.COMPLETE)
    assert mentions(broken.reason, "memory", "150 B", "100 B")
    assert mentions(slow.reason, "step_time", "0.55 s", "0.5 s")


@table(
    ("budget", "trials", "usage", "room", "expected"),
    [
        (Budget(4), [], Usage(), 2, Next(launch=True)),
        (Budget(4), [LIVE], Usage(), 1, Next()),
        (Budget(4), [LIVE], Usage(), 2, Next(launch=True)),
        (Budget(4), [trial(0, TrialState.LAUNCHING)], Usage(), 2, Next()),
        (Budget(2), [DONE, LIVE], Usage(), 4, Next()),
        (Budget(), [DONE], Usage(), 0, Next()),
    ],
)
def test_a_study_begins_trials_while_there_is_room(
    budget: Budget, trials: list[TrialRecord], usage: Usage, room: int, expected: Next
) -> None:
    assert next_move(study(budget=budget), trials, usage, room) == expected


def test_a_study_ends_with_its_trials_its_points_or_its_budget() -> None:
    grid = study(budget=Budget(9), space=(Dimension("lr", "choice", choices=(0.1,)),), sampler=SamplerSpec("grid"))
    for spec in (study(budget=Budget(1)), grid):
        assert next_move(spec, [DONE], Usage(), 4).over is not None
    assert next_move(grid, [DONE, LIVE], Usage(), 4) == Next()
    for budget, usage in ((Budget(gpu_hours=2.0), Usage(gpu_hours=2.0)), (Budget(wall_seconds=9.0), Usage(0.0, 9.0))):
        spent = next_move(study(budget=budget), [DONE, LIVE], usage, 4)
        assert spent.stop_trials is not None
        assert spent.over is None
        assert not spent.launch
        assert next_move(study(budget=budget), [DONE], usage, 4).over is not None


@table("values, since, expected", [
    ((0.5, 0.4, 0.6, 0.4), 0.0, 2), ((0.5, 0.4, None, 0.3), 0.0, 0), ((0.5, 0.6, 0.7), 2.5, 1), ((None, None), 0.0, 2),
])  # fmt: skip
def test_trials_that_bring_nothing_better_are_counted_in_a_row(
    values: tuple[float | None, ...], since: float, expected: int
) -> None:
    ended = [
        trial(number, TrialState.FAILED if value is None else TrialState.COMPLETE, ended_at=number + 1.0,
              values=() if value is None else (value,))
        for number, value in enumerate(values)
    ]  # fmt: skip
    stopped = trial(len(ended), TrialState.STOPPED, ended_at=9.0)
    assert fruitless_count([*ended, stopped], [LOSS], since) == expected
    move = next_move(study(stop_after=2), [*ended, stopped], Usage(), 1, since=since)
    assert (move.over is not None) is (expected == 2)


def test_a_front_that_grows_is_something_better() -> None:
    objectives = [LOSS, Objective("accuracy", "maximize")]
    values = [(0.5, 0.5), (0.6, 0.6), (0.4, 0.4), (0.5, 0.4)]
    ended = [trial(n, TrialState.COMPLETE, ended_at=float(n), values=pair) for n, pair in enumerate(values)]
    assert [fruitless_count(ended[:count], objectives, 0.0) for count in (3, 4)] == [0, 1]


def test_trials_of_other_processes_take_nothing_from_the_budget() -> None:
    outside = trial(0, TrialState.RUNNING, origin="outside", run_id=None)
    assert next_move(study(budget=Budget(1)), [outside], Usage(), 1) == Next(launch=True)
    done = next_move(study(budget=Budget(1)), [outside, trial(1, TrialState.COMPLETE)], Usage(), 1)
    assert done.over is not None


def test_a_point_by_hand_is_run_beyond_the_budget_and_earlier_runs_do_not_count() -> None:
    enqueued = trial(1, TrialState.ENQUEUED, origin="enqueued", run_id=None)
    assert next_move(study(budget=Budget(1)), [DONE, enqueued], Usage(), 1) == Next(launch=True)
    warm = trial(0, TrialState.COMPLETE, origin="warm")
    assert next_move(study(budget=Budget(1)), [warm], Usage(), 1).launch


def test_a_study_gives_way_to_other_runs() -> None:
    spec = study(gpus_per_trial=2)
    assert [room_for(spec, 8, others, 4, 1) for others in (0, 1, 7, 9)] == [4, 3, 1, 1]
    assert room_for(study(gpus_per_trial=2, parallel=3), 8, 0, 4, 1) == 3
    assert [room_for(study(gpus_per_trial=1), 4, others, 4, 1, share=3) for others in (0, 2, 4)] == [12, 6, 1]
    assert room_for(study(gpus_per_trial=1, parallel=5), 4, 0, 4, 1, share=3) == 5
    assert room_for(study(gpus_per_trial=8, parallel=3, target={"name": "lab"}), 8, 9, 4, 1) == 3
    assert room_for(study(), 0, 0, 8, 2) == 4
    assert room_for(study(), 0, 0, 2, 4) == 1
    assert room_for(study(parallel=3), 0, 0, 2, 4) == 3


@table("most, total, foreign, peak, count", [
    (4, 80, 0, 10, 4), (9, 80, 0, 10, 7), (9, 80, 30, 10, 4), (4, 80, 0, 40, 1), (4, 80, 79, 10, 1), (1, 80, 0, 1, 1),
    (4, 80, 0, None, 1), (4, 80, None, 1, 1), (4, None, 0, 1, 1), (4, 80, 0, 0, 1),
])  # fmt: skip
def test_as_many_share_as_fit(most: int, total: int | None, foreign: int | None, peak: int | None, count: int) -> None:
    assert trials_on_gpu(most, total, foreign, peak) == count


def test_two_alike_before_any_step_or_a_few_without_a_number_are_enough() -> None:
    enough = ["aa", "baa", "d" * SAME_OF_SPACE, "a" + "d" * SAME_OF_SPACE, "daa"]
    for causes in (*enough, "a", "ab", "-bb", "--", "d", "dd", "-" + "d" * SAME_OF_SPACE):
        kinds = [{"d": "diverged", "-": None}.get(cause, cause) for cause in causes]
        assert same_cause(kinds) is (causes in enough), causes


def test_a_grid_gives_each_point_once() -> None:
    spec = study(sampler=SamplerSpec("grid"))
    assert grid_point(spec, []) == {"lr": 0.1}
    assert grid_point(spec, [trial(0, TrialState.FAILED)]) == {"lr": 0.2}
    assert grid_point(spec, [trial(0, TrialState.RUNNING, origin="outside")]) == {"lr": 0.1}
    assert grid_point(spec, [trial(0, TrialState.FAILED), trial(1, TrialState.RUNNING, params={"lr": 0.2})]) is None


# --- recovery inside a study ------------------------------------------------------------------------------------------


def test_out_of_memory_keeps_the_effective_batch_where_it_is_not_tuned() -> None:
    of_lr = trial_spec(BASE, study(), "s-1", 0, {"lr": 0.1})
    plan = planned(of_lr, "cuda_oom")
    assert (plan.params["batch_size"], plan.params["grad_accum"], plan.params["lr"]) == (12, 4, 0.1)
    batch = Dimension("batch_size", "choice", choices=(8, 16))
    of_batch = trial_spec(BASE, study(space=(batch,)), "s-1", 0, {"batch_size": 16})
    assert planned(of_batch, "cuda_oom").verdict == "stop"
    without = RunSpec("net", "python", ("net.py",), "/", "/usr/bin/python", params={"lr": 0.3, "batch_size": 16})
    assert planned(without, "cuda_oom").changed == {"batch_size": 12}
    assert planned(trial_spec(without, study(), "s-1", 0, {}), "cuda_oom").verdict == "stop"


def test_a_trial_is_an_ordinary_run_of_its_study() -> None:
    base = replace(BASE, gpus=GpuRequest(4, min_count=2))
    spec = trial_spec(base, study(), "s-1", 3, {"lr": 0.1})
    assert (spec.study_id, spec.trial, spec.tuned, spec.params["lr"]) == ("s-1", 3, ("lr",), 0.1)
    assert spec.priority < base.priority
    assert spec.gpus.min_count is None
    spec = trial_spec(replace(BASE, recovery={"ladders": {"unknown": ["restart", "restart"]}}), study(), "s-1", 0, {})
    assert [len(policy_from(spec.recovery).ladder(kind)) for kind in ("nonzero_exit", "unknown", "nan_loss")] == [
        2,
        3,
        1,
    ]
    off = trial_spec(replace(BASE, recovery={"policy": "off"}), study(), "s-1", 0, {})
    assert not policy_from(off.recovery).enabled
    assert RunSpec.from_json(spec.to_json()) == spec


def test_what_was_cut_short_runs_to_the_end_where_it_is_among_the_best() -> None:
    done = [trial(number, TrialState.COMPLETE, values=(value,)) for number, value in enumerate((0.3, 0.5))]
    done += [trial(number, TrialState.PRUNED) for number in (2, 3, 4)]
    reached = {2: 0.4, 3: 0.2, 4: 0.9}
    assert trials_to_rerun(study(rerun=2), done, reached) == (3,)
    assert trials_to_rerun(study(rerun=3), done, reached) == (3, 2)
    assert trials_to_rerun(study(rerun=0), done, reached) == ()
    upwards = study(rerun=2, objectives=(Objective("accuracy", "maximize"),))
    assert trials_to_rerun(upwards, done, reached) == (4,)
    # Each of the best trials is continued once, and no more than `rerun` of them.
    again = trial(5, TrialState.COMPLETE, origin="rerun", parent=3, values=(0.8,))
    assert trials_to_rerun(study(rerun=2), [*done, again], reached) == (2,)
    third = trial(6, TrialState.COMPLETE, origin="rerun", parent=2)
    assert trials_to_rerun(study(rerun=2), [*done, again, third], reached) == ()


@table(
    "dimension",
    [
        Dimension("x", "float", 100000.0, 200000.0, step=2.5), Dimension("x", "float", 0.0, 1.0, step=0.3333333),
        Dimension("x", "float", 0.1234567890123456, 1.0, step=0.1), Dimension("x", "float", 1e-7, 3e-7, step=1e-7),
    ],
)  # fmt: skip
def test_a_drawn_or_counted_value_is_one_that_the_dimension_takes(dimension: Dimension) -> None:
    spec = PbtSpec(2, every=5)
    points = [first_point([dimension], 0, number) for number in range(50)]
    points += [perturb(point, [dimension], spec, random.Random(number)) for number, point in enumerate(points)]
    assert all(dimension.holds(point["x"]) and make_distribution(dimension)._contains(point["x"]) for point in points)
    assert all(map(dimension.holds, (dimension.grid() or ())[:500]))
    assert not any(map(Dimension("n", "int", 0, 8).holds, (math.nan, math.inf, 10**400)))
