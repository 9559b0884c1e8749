"""Scaling of runs that differ only in their number of GPUs, or of CPU processes, and where the
speed-up is lost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from gputui.reports.summary.facts import RunFacts, round_floats

Unit = Literal["samples/s", "tokens/s"]


class ScalingRow(Struct, frozen=True):
    """A run compared with the one of fewest ranks, the base.

    Attributes:
        speed: samples or tokens per second.
        speed_up: the speed as a multiple of the base's.
        efficiency: 1 for a perfect speed-up.
        comm_share: the share of the step time spent in collectives.
        data_share: the share of the step time spent in waiting for data.
        extra_comm_seconds: how much longer than the base a step spends in collectives.
        extra_data_seconds: how much longer than the base a step waits for data.
        extra_other_seconds: how much longer the rest of a step takes: slower clocks, uneven ranks, smaller kernels.
    """

    run_id: str
    ranks: int
    speed: float | None
    speed_up: float | None
    efficiency: float | None
    step_seconds: float | None
    comm_share: float | None
    data_share: float | None
    extra_comm_seconds: float | None
    extra_data_seconds: float | None
    extra_other_seconds: float | None

    def to_json(self) -> dict[str, Any]:
        shape: dict[str, Any] = round_floats(asdict(self))
        return shape


def scaling_rows(runs: Iterable[RunFacts], unit: Unit | None = None) -> list[ScalingRow]:
    """A row for each run, fewest ranks first. Without a unit: samples, where a run reports them."""
    ordered = sorted(runs, key=lambda run: run.ranks)
    return [_row(run, ordered[0], unit) for run in ordered]


def _row(run: RunFacts, base: RunFacts, unit: Unit | None) -> ScalingRow:
    speed = speed_of(run, unit)
    base_speed = speed_of(base, unit)
    speed_up = None
    efficiency = None
    if speed is not None and base_speed:
        speed_up = speed / base_speed
        efficiency = speed_up * base.ranks / run.ranks
    comm, data, step = _parts(run)
    base_comm, base_data, base_step = _parts(base)
    extra = _minus(step, base_step)
    extra_comm = _minus(comm, base_comm)
    extra_data = _minus(data, base_data)
    extra_other = None
    if extra is not None:
        extra_other = _minus(extra - (extra_data or 0.0), extra_comm)
    return ScalingRow(
        run_id=run.run.run_id,
        ranks=run.ranks,
        speed=speed,
        speed_up=speed_up,
        efficiency=efficiency,
        step_seconds=step,
        comm_share=_comm_share(run),
        data_share=run.measured.data_share,
        extra_comm_seconds=extra_comm,
        extra_data_seconds=extra_data,
        extra_other_seconds=extra_other,
    )


def speed_of(run: RunFacts, unit: Unit | None = None) -> float | None:
    """The speed in samples, else in tokens, if it is known and above 0."""
    measured = run.measured
    if unit == "tokens/s" or (unit is None and measured.samples_per_second is None):
        return measured.tokens_per_second or None
    return measured.samples_per_second or None


def _comm_share(run: RunFacts) -> float | None:
    """A single rank waits for no other and usually reports no communication time."""
    share = run.measured.comm_share
    if share is None and run.ranks == 1:
        return 0.0
    return share


def _parts(run: RunFacts) -> tuple[float | None, float | None, float | None]:
    """The seconds of a step in collectives, in waiting for data, and in total."""
    measured = run.measured
    comm = _comm_share(run)
    if measured.step_seconds is None:
        return None, None, None
    step = measured.step_seconds.p50
    data = measured.data_share
    comm_seconds = None if comm is None else comm * step
    data_seconds = None if data is None else data * step
    return comm_seconds, data_seconds, step


def _minus(value: float | None, subtrahend: float | None) -> float | None:
    if value is None or subtrahend is None:
        return None
    return value - subtrahend


class Scaling(Struct, frozen=True):
    """Runs of one profile with the same parameters, one for each number of ranks, fewest first.
    ``unit`` is samples or tokens per second, since the size of a step may differ."""

    profile: str
    unit: Unit
    rows: tuple[ScalingRow, ...]
    has_gpus: bool


def scalings(runs: Iterable[RunFacts]) -> tuple[Scaling, ...]:
    """The groups with at least two numbers of ranks; the newest of several runs with the same
    number counts."""
    groups: dict[tuple[str, bool], list[RunFacts]] = {}
    for run in runs:
        if run.ranks > 0:
            groups.setdefault((run.like, run.gpu_count > 0), []).append(run)
    scaled = []
    for (_, has_gpus), group in groups.items():
        units: tuple[Unit, ...] = ("samples/s", "tokens/s")
        for unit in units:
            measured = [run for run in group if speed_of(run, unit) is not None]
            newest = {run.ranks: run for run in sorted(measured, key=lambda run: run.run.created_at)}
            if len(newest) > 1:
                rows = tuple(scaling_rows(newest.values(), unit))
                scaled.append(Scaling(group[0].run.profile, unit, rows, has_gpus))
                break
    return tuple(scaled)


def efficiency_of(run_id: str, groups: Iterable[Scaling]) -> float | None:
    """The efficiency of a run on GPUs within its group; None for the base run. CPU processes share
    the cores of one machine, so they are not judged."""
    rows = (row for group in groups if group.has_gpus for row in group.rows[1:])
    return next((row.efficiency for row in rows if row.run_id == run_id), None)


def scalability_shape(groups: Sequence[Scaling]) -> dict[str, Any]:
    """``scalability_report.json``."""
    return {
        "groups": [
            {
                "profile": group.profile,
                "unit": group.unit,
                "runs": [_row_shape(row, has_gpus=group.has_gpus) for row in group.rows],
            }
            for group in groups
        ]
    }


def _row_shape(row: ScalingRow, *, has_gpus: bool) -> dict[str, Any]:
    gpus, processes = (row.ranks, None) if has_gpus else (0, row.ranks)
    return {
        "run_id": row.run_id,
        "gpus": gpus,
        "processes": processes,
        "speed": row.speed,
        "speed_up": row.speed_up,
        "efficiency": row.efficiency,
        "communication_share": row.comm_share,
        "data_wait_share": row.data_share,
    }
