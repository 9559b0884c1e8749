"""Where the speed-up of more ranks is lost: a benchmark of runs that differ only in their number of ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from gputui.reports.summary.facts import Measured, number


class ScaledRun(Struct, frozen=True):
    """A run of the benchmark, on ``ranks`` GPUs or processes."""

    run_id: str
    ranks: int
    measured: Measured


class ScalingRow(Struct, frozen=True):
    """A run compared with the one of fewest ranks.

    ``speed`` is in samples (or tokens) per second; ``efficiency`` is 1 for a perfect speed-up. The ``extra_`` seconds
    are the increase of the step time over the base run: in collectives, in waiting for data, and in the rest (slower
    clocks, uneven ranks, smaller kernels). None is unknown.
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
        return {name: number(value) if isinstance(value, float) else value for name, value in asdict(self).items()}


def scaling_rows(runs: Sequence[ScaledRun]) -> list[ScalingRow]:
    """A row for each run, fewest ranks first."""
    ordered = sorted(runs, key=lambda run: run.ranks)
    if not ordered:
        return []
    base = ordered[0]
    return [_row(run, base) for run in ordered]


def _row(run: ScaledRun, base: ScaledRun) -> ScalingRow:
    speed, base_speed = _speed(run.measured), _speed(base.measured)
    speed_up = speed / base_speed if speed is not None and base_speed else None
    comm, data, step = _parts(run)
    base_comm, base_data, base_step = _parts(base)
    extra = None if step is None or base_step is None else step - base_step
    extra_comm = None if comm is None or base_comm is None else comm - base_comm
    extra_data = None if data is None or base_data is None else data - base_data
    rest = None if extra is None or extra_comm is None else extra - extra_comm - (extra_data or 0.0)
    return ScalingRow(
        run.run_id, run.ranks, speed, speed_up,
        None if speed_up is None else speed_up * base.ranks / run.ranks,
        step, _comm_share(run), run.measured.data_share, extra_comm, extra_data, rest,
    )  # fmt: skip


def _speed(measured: Measured) -> float | None:
    found = measured.samples_per_second if measured.samples_per_second is not None else measured.tokens_per_second
    return found if found else None


def _comm_share(run: ScaledRun) -> float | None:
    """A single rank waits for no other and usually reports no communication time."""
    return 0.0 if run.measured.comm_share is None and run.ranks == 1 else run.measured.comm_share


def _parts(run: ScaledRun) -> tuple[float | None, float | None, float | None]:
    """The seconds of a step in collectives, in waiting for data, and in total."""
    measured, comm_share = run.measured, _comm_share(run)
    step = None if measured.step_seconds is None else measured.step_seconds.p50
    if step is None:
        return None, None, None
    comm = None if comm_share is None else comm_share * step
    data = None if measured.data_share is None else measured.data_share * step
    return comm, data, step
