"""The scaling of runs that differ only in their number of GPUs, or of CPU processes: ``scalability_report.json``.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from gputui.reports.summary.facts import RunFacts, number

Unit = Literal["samples/s", "tokens/s"]


class Point(Struct, frozen=True):
    """A run in a group: its speed, its speed-up over the run with the fewest ranks (GPUs, or processes without GPUs),
    and the efficiency (1 is perfect)."""

    run_id: str
    ranks: int
    speed: float
    speed_up: float
    efficiency: float
    comm_share: float | None
    data_share: float | None


class Scaling(Struct, frozen=True):
    """Runs of one profile with the same parameters, one for each number of ranks, fewest first. ``unit`` is samples or
    tokens per second, since the size of a step may differ."""

    profile: str
    unit: Unit
    points: tuple[Point, ...]
    has_gpus: bool = True


def scalings(runs: Iterable[RunFacts]) -> tuple[Scaling, ...]:
    """The groups with at least two numbers of ranks; the newest of several runs with the same number counts."""
    groups: dict[tuple[str, bool], list[RunFacts]] = {}
    for run in runs:
        if _ranks(run) > 0:
            groups.setdefault((run.like, run.gpu_count > 0), []).append(run)
    found = []
    for group in groups.values():
        units: tuple[Unit, ...] = ("samples/s", "tokens/s")
        scaled = (_scaling(group, unit) for unit in units)
        found.append(next((one for one in scaled if one is not None), None))
    return tuple(one for one in found if one is not None)


def _scaling(group: Sequence[RunFacts], unit: Unit) -> Scaling | None:
    newest: dict[int, tuple[RunFacts, float]] = {}
    for run in sorted(group, key=lambda each: each.created_at):
        measured = run.measured
        speed = measured.samples_per_second if unit == "samples/s" else measured.tokens_per_second
        if speed is not None and speed > 0:
            newest[_ranks(run)] = (run, speed)
    if len(newest) < 2:
        return None
    least = min(newest)
    base = newest[least][1]
    points = [
        Point(
            run.run_id, count, speed, speed / base, speed / base * least / count, run.measured.comm_share,
            run.measured.data_share,
        )
        for count, (run, speed) in sorted(newest.items())
    ]  # fmt: skip
    return Scaling(group[0].profile, unit, tuple(points), group[0].gpu_count > 0)


def _ranks(run: RunFacts) -> int:
    return run.gpu_count or run.process_count


def efficiency_of(run_id: str, groups: Iterable[Scaling]) -> float | None:
    """The efficiency of a run on GPUs within its group; None for the base run. CPU processes share the cores of one
    machine, so they are not judged."""
    for group in groups:
        if not group.has_gpus:
            continue
        for point in group.points[1:]:
            if point.run_id == run_id:
                return point.efficiency
    return None


def scalability_shape(groups: Sequence[Scaling]) -> dict[str, Any]:
    """The JSON of the groups."""
    return {
        "groups": [
            {
                "profile": group.profile,
                "unit": group.unit,
                "runs": [
                    {
                        "run_id": point.run_id,
                        "gpus": point.ranks if group.has_gpus else 0,
                        "processes": None if group.has_gpus else point.ranks,
                        "speed": number(point.speed),
                        "speed_up": number(point.speed_up),
                        "efficiency": number(point.efficiency),
                        "communication_share": number(point.comm_share),
                        "data_wait_share": number(point.data_share),
                    }
                    for point in group.points
                ],
            }
            for group in groups
        ]
    }
