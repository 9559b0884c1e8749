"""Costs, scaling, spreads, what lines add up to, and how gates judge it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.recovery.costs import Cost
from gputui.reports.summary.facts import EpochLoss, GpuUse, Measured, RateCheck, RunFacts, Validation, spread
from gputui.reports.summary.gates import judge
from gputui.reports.summary.report import Prices, cost_of, total_costs
from gputui.reports.summary.speedup import efficiency_of, scaling_rows, scalings
from gputui.reports.summary.story import best_of
from gputui.reports.summary.tally import measure
from gputui.store.attempts import Attempt, RunCost
from gputui.store.metrics.roles import USUAL_ROLES, MetricRoles
from gputui.store.metrics.stored_lines import StoredLine
from gputui.store.run_states import RunState
from gputui.store.runs import Run

NAN = math.nan


def facts(run_id: str = "net-1", on: int = 1, *, created_at: float = 100.0, like: str = "net", **more: Any) -> RunFacts:
    """A run of which nothing is known but what is given."""
    uuids = tuple(f"GPU-{number}" for number in range(on))
    run = Run(
        run_id,
        1,
        "net",
        profile="net",
        state=RunState.SUCCEEDED,
        attempt=1,
        params={},
        spec_json="{}",
        created_at=created_at,
        gpus=uuids,
    )
    return RunFacts(
        run,
        1,
        10,
        {},
        like,
        **{"cost": RunCost(gpu_hours=None, energy_joules=None, energy_is_partial=False, attempts=()), **more},
    )


def learned(**measured: Any) -> RunFacts:
    return facts(measured=Measured(**measured))


def used(*percents: float) -> RunFacts:
    return facts(gpus=GpuUse(utilization_percent=spread((percent, 1) for percent in percents)))


def fast(run_id: str, on: int, samples_per_second: float | None, **changes: Any) -> RunFacts:
    return facts(run_id, on, measured=Measured(samples_per_second=samples_per_second), **changes)


def attempt(number: int, first_step: int | None) -> Attempt:
    return Attempt(
        "net-1",
        number,
        "running",
        params={},
        gpus=(),
        launch={},
        created_at=0.0,
        started_at=0.0,
        first_step_at=0.0,
        first_step=first_step,
    )


def lines(number: int, first: int, *rows: dict[str, Any]) -> list[StoredLine]:
    return [
        StoredLine(number, row.pop("rank", 0), first + place, 0.0, {"step": first + place, **row})
        for place, row in enumerate(rows)
    ]


def nothing_expected(*_: object) -> None:
    return None


def measured_speed(step: float, speed: float | None, comm: float | None = None, data: float | None = None) -> Measured:
    return Measured(step_seconds=spread([(step, 3)]), samples_per_second=speed, comm_share=comm, data_share=data)


def epochs(*losses: float) -> RunFacts:
    return learned(epochs=tuple(EpochLoss(number, loss, 5) for number, loss in enumerate(losses)))


def norms(*values: float, bad: int = 0, scaled: bool = False) -> RunFacts:
    norms = spread((value, 1) for value in values)
    return learned(gradient_norm=norms, gradients_not_finite=bad, scales_loss=scaled)


def rate(percent: float) -> RunFacts:
    return learned(rate=RateCheck(percent, 7))


def gap(held_out: float, train: float) -> RunFacts:
    return learned(validation=Validation(9, held_out, train))


def test_spread_is_nearest_rank_and_leaves_out_what_is_no_number() -> None:
    times = spread([(5.0, 1), (1.0, 98), (9.0, 1), (math.nan, 50)])
    assert times is not None
    assert (times.p05, times.p50, times.p95, times.p99, times.max, times.count) == (1.0, 1.0, 1.0, 5.0, 9.0, 100)
    assert times.mean == pytest.approx(1.12)
    assert spread([(math.inf, 3)]) is None


def test_steps_that_were_done_again_are_not_learned_from_twice() -> None:
    rows = lines(1, 0, {"loss": 4.0, "epoch": 0}, {"loss": 3.0, "epoch": 0}, {"loss": math.inf, "epoch": 1})
    rows[2].data["loss"] = "Infinity"  # type: ignore[index]
    rows += lines(2, 2, {"loss": 2.0, "epoch": 1}, {"loss": 1.0, "epoch": 1})
    figures = measure(rows, [attempt(1, 0), attempt(2, 2)], nothing_expected, USUAL_ROLES)
    assert [(epoch.epoch, epoch.loss) for epoch in figures.epochs] == [(0, 3.5), (1, 1.5)]
    assert [(best.name, best.value, best.step) for best in figures.best] == [("loss", 1.0, 3)]


def test_shares_are_of_the_time_and_throughput_counts_as_long_as_it_held() -> None:
    rows = lines(
        1, 0,
        {"step_time": 1.0, "data_time": 0.1, "samples_per_s": 300.0},
        {"step_time": 3.0, "data_time": 1.1, "samples_per_s": 100.0, "comm_time": 0.6},
        {"step_time": 2.0, "comm_time": 0.8, "rank": 1, "gpu_mem_peak": 7e9},
    )  # fmt: skip
    figures = measure(rows, [attempt(1, 0)], nothing_expected, USUAL_ROLES)
    assert figures.data_share == pytest.approx(0.3)
    assert figures.comm_share == pytest.approx((0.2 + 0.4) / 2)
    assert figures.samples_per_second == pytest.approx(150.0)
    assert figures.peak_memory_bytes == 7e9
    assert figures.step_seconds is not None
    assert (figures.step_seconds.p50, figures.step_seconds.p95) == (1.0, 3.0)


def test_the_gap_is_to_the_training_loss_since_the_validation_before() -> None:
    rows = lines(
        1, 0, {"loss": 9.0}, {"event": "validation", "val/loss": 9.5}, {"loss": 2.0}, {"loss": 1.0}, {"val/loss": 1.8}
    )
    validation = measure(rows, [attempt(1, 0)], nothing_expected, USUAL_ROLES).validation
    assert validation is not None
    assert (validation.step, validation.loss, validation.train_loss) == (4, 1.8, 1.5)


def test_the_best_value_is_of_what_the_profile_names() -> None:
    rows = lines(1, 0, {"train/loss": 2.0, "error": 0.5}, {"train/loss": 1.0, "error": 0.7})
    for roles, name, value in (
        (MetricRoles("train/loss"), "train/loss", 1.0),
        (MetricRoles("train/loss", best="error", mode="max"), "error", 0.7),
        (MetricRoles("train/loss", best="error", mode="min"), "error", 0.5),
    ):
        run = facts(measured=measure(rows, [attempt(1, 0)], nothing_expected, roles))
        best = best_of(replace(run, run=replace(run.run, roles=roles, metric=roles.best)))
        assert best is not None
        assert (best.name, best.value) == (name, value)


def test_cost_with_prices() -> None:
    run = facts(
        cost=RunCost(10.0, 3.6e6 * 4, energy_is_partial=False, attempts=()),
        gpus=GpuUse(idle_share=0.25),
        lost=Cost(5, 60.0, 1.0, 2),
    )
    cost = cost_of(run, Prices(0.5, 2.0, "EUR"))
    assert (cost.energy_kwh, cost.price, cost.is_partial) == (4.0, 22.0, False)
    assert (cost.lost_share, cost.idle_gpu_hours, cost.idle_share) == (0.1, 2.5, 0.25)


def test_an_unknown_energy_makes_a_price_partial_and_is_never_free() -> None:
    unknown = cost_of(
        facts(cost=RunCost(10.0, energy_joules=None, energy_is_partial=True, attempts=())), Prices(per_kwh=0.5)
    )
    assert (unknown.price, unknown.is_partial, unknown.idle_share, unknown.lost_share) == (None, True, None, 0.0)
    complete = cost_of(facts(cost=RunCost(2.0, 3.6e6, energy_is_partial=False, attempts=())), Prices(per_kwh=0.5))
    total = total_costs([unknown, complete])
    assert (total.gpu_hours, total.price, total.is_partial) == (12.0, 0.5, True)
    assert cost_of(facts(), Prices()).price is None


def test_scaling_compares_the_newest_run_of_each_number_of_gpus() -> None:
    runs = [
        fast("old", 2, 500.0, created_at=1.0), fast("one", 1, 100.0), fast("two", 2, 180.0), fast("four", 4, 300.0),
        fast("other", 8, 900.0, like="else"), fast("mute", 8, samples_per_second=None), fast("cpu", 0, 9.0),
    ]  # fmt: skip
    [group] = scalings(runs)
    assert [(p.run_id, p.speed_up, p.efficiency) for p in group.rows] == [
        ("one", 1.0, 1.0), ("two", 1.8, 0.9), ("four", 3.0, 0.75),
    ]  # fmt: skip
    assert efficiency_of("four", [group]) == 0.75
    assert efficiency_of("one", [group]) is None
    assert efficiency_of("other", [group]) is None


def test_speed_up_efficiency_and_where_time_went() -> None:
    rows = scaling_rows([
        facts("x4", 4, measured=measured_speed(0.16, 250.0, comm=0.25, data=0.05)),
        facts("x1", 1, measured=measured_speed(0.10, 100.0, data=0.05)),
    ])  # fmt: skip
    assert [row.run_id for row in rows] == ["x1", "x4"]
    first, last = rows
    assert (first.speed_up, first.efficiency, first.extra_other_seconds) == (1.0, 1.0, 0.0)
    assert first.comm_share == 0.0, "one rank waits for nobody, though it tells nothing of it"
    assert (last.speed_up, last.efficiency) == (2.5, 0.625)
    assert last.extra_comm_seconds == pytest.approx(0.04)
    assert last.extra_data_seconds == pytest.approx(0.003)
    assert last.extra_other_seconds == pytest.approx(0.06 - 0.043)


def test_what_is_not_told_is_unknown() -> None:
    _, last = scaling_rows([facts("x1"), facts("x2", 2, measured=measured_speed(0.1, None))])
    assert (last.speed, last.speed_up, last.efficiency, last.extra_comm_seconds) == (None, None, None, None)
    assert last.to_json()["step_seconds"] == 0.1
    assert last.to_json()["efficiency"] is None
    assert scaling_rows([]) == []


# --- gates


def test_gate() -> None:
    for gate, run, efficiency, outcome, figure in [
        ("loss_rise", epochs(2.0, 1.0, 1.005), None, "pass", 0.5),
        ("loss_rise", epochs(2.0, 1.0, 1.02), None, "fail", 2.0),
        ("loss_rise", epochs(2.0, 1.0), None, "pass", -50.0),
        ("loss_rise", epochs(-1.0, -0.5), None, "fail", 50.0),
        ("loss_rise", epochs(2.0, NAN), None, "fail", math.inf),
        ("loss_rise", epochs(2.0), None, "skip", None),
        # A converged model's loss doubles by noise: next to the loss it began with, that is nothing.
        ("loss_rise", epochs(2.0, 6e-4, 1.4e-3), None, "pass", 0.4),
        ("gradients", norms(1.0, 1.0, 9.0), None, "pass", 9.0),
        ("gradients", norms(1.0, 1.0, 11.0), None, "fail", 11.0),
        ("gradients", norms(1.0, bad=1), None, "fail", math.inf),
        ("gradients", norms(1.0, bad=1, scaled=True), None, "pass", 1.0),
        ("gradients", facts(), None, "skip", None),
        ("learning_rate", rate(0.9), None, "pass", 0.9),
        ("learning_rate", rate(1.1), None, "fail", 1.1),
        ("learning_rate", facts(), None, "skip", None),
        ("validation_gap", gap(1.1, 1.0), None, "pass", 10.0),
        ("validation_gap", gap(0.8, 1.0), None, "pass", -20.0),
        ("validation_gap", gap(1.3, 1.0), None, "fail", 30.0),
        ("validation_gap", gap(NAN, 1.0), None, "fail", math.inf),
        ("validation_gap", facts(), None, "skip", None),
        ("gpu_utilization", used(80.0, 94.0), None, "pass", 87.0),
        ("gpu_utilization", used(80.0, 84.0), None, "fail", 82.0),
        ("gpu_utilization", facts(), None, "skip", None),
        ("parallel_efficiency", facts(), 0.85, "pass", 85.0),
        ("parallel_efficiency", facts(), 0.75, "fail", 75.0),
        ("parallel_efficiency", facts(), None, "skip", None),
    ]:
        [verdict] = [gate_verdict for gate_verdict in judge(run, efficiency, {}) if gate_verdict.gate == gate]
        assert verdict.outcome == outcome, (gate, run, efficiency, outcome, figure)
        assert verdict.text, (gate, run, efficiency, outcome, figure)
        expected = None if figure is None else pytest.approx(figure)
        assert verdict.figure == expected, gate
        assert {gate_verdict.outcome for gate_verdict in judge(run, efficiency, {}) if gate_verdict.gate != gate} == {
            "skip"
        }, gate


def test_the_validation_gap_names_what_it_is_a_share_of() -> None:
    for first_loss, base in ((2.0, "1"), (55.0, "5.5")):
        run = replace(
            gap(1.3, 1.0), measured=replace(gap(1.3, 1.0).measured, epochs=epochs(first_loss).measured.epochs)
        )
        assert f" {base}, " in next(
            gate_verdict.text
            for gate_verdict in judge(run, efficiency=None, thresholds={})
            if gate_verdict.gate == "validation_gap"
        )


def test_a_profile_has_thresholds_of_its_own_and_the_option_wins() -> None:
    run = replace(used(80.0), thresholds={"gpu_utilization": 75.0})
    assert {gate_verdict.gate: gate_verdict.outcome for gate_verdict in judge(run, efficiency=None, thresholds={})}[
        "gpu_utilization"
    ] == "pass"
    assert {
        gate_verdict.gate: gate_verdict.outcome
        for gate_verdict in judge(run, efficiency=None, thresholds={"gpu_utilization": 81.0})
    }["gpu_utilization"] == "fail"
