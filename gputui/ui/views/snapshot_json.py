"""A snapshot of everything as the JSON that ``gputui --once --json`` prints: the shapes that other commands print, in
one object. Fields are only ever added; unknown is null."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import asdict

from gputui.core.units import iso
from gputui.metrics.progress import RankRow
from gputui.store import json_shapes
from gputui.store.hardware import GpuView, Quarantined
from gputui.store.json_shapes import Shape, number_or_word
from gputui.ui.views.snapshot import RunRow, Snapshot


def snapshot_shape(snapshot: Snapshot, *, running: bool, home: str) -> Shape:
    """The JSON of ``gputui --once --json``.

    Its GPUs, runs and alerts are as the commands `gpus`, `ps` and `alerts` print them, the runs with how far they had
    come. ``gap`` is the stretch without a recording in which a past moment lies, ``problem`` why the record could not
    be read, ``gpu_problem`` why the agent sees no GPUs.

    Args:
        snapshot: what is printed.
        running: whether an agent runs now.
        home: the path of the home.
    """
    gap = host = gpu_problem = None
    if snapshot.past is not None and snapshot.past.gap is not None:
        gap = {"start": iso(snapshot.past.gap.start), "end": iso(snapshot.past.gap.end)}
    if snapshot.host is not None:
        host = {**asdict(snapshot.host), "at": iso(snapshot.host.at)}
    if snapshot.agent is not None:
        gpu_problem = snapshot.agent.gpu_problem
    ranks = {row.run.run_id: row.progress.ranks for row in snapshot.runs}
    return {
        "at": iso(snapshot.at),
        "is_past": snapshot.past is not None,
        "gap": gap,
        "problem": snapshot.problem,
        "agent": json_shapes.agent_shape(snapshot.agent, running=running, home=home),
        "gpu_problem": gpu_problem,
        "gpus": gpu_shapes(snapshot.gpus, ranks, snapshot.machine.quarantined, snapshot.machine.xids),
        "host": host,
        "runs": [row_shape(row) for row in snapshot.runs],
        "alerts": [json_shapes.alert_shape(alert, snapshot.at) for alert in snapshot.alerts],
        "events": [
            {name: value for name, value in asdict(event).items() if name != "event_id"} | {"at": iso(event.at)}
            for event in snapshot.events
        ],
    }


def gpu_shapes(
    gpus: Sequence[GpuView],
    ranks: Mapping[str, Mapping[int, RankRow]],
    quarantined: Mapping[str, Quarantined],
    xids: Mapping[str, int],
) -> list[Shape]:
    """The GPUs of ``gputui gpus --json`` and ``gputui --once --json``.

    Args:
        gpus: all GPUs.
        ranks: the pace of each run's ranks.
        quarantined, xids: as in `MachineState`, by the GPU's UUID.
    """
    shapes = []
    for gpu in gpus:
        step_seconds = waiting_fraction = None
        # On a shared GPU no run has its pace alone.
        if gpu.run_id is not None and gpu.rank is not None and not gpu.shared_with:
            rank = ranks.get(gpu.run_id, {}).get(gpu.rank)
            if rank is not None:
                step_seconds = rank.step_seconds
                waiting_fraction = rank.waiting_fraction
        shapes.append(
            json_shapes.gpu_shape(
                gpu,
                quarantined.get(gpu.uuid),
                xids=xids.get(gpu.uuid, 0),
                step_seconds=_finite_or_none(step_seconds),
                data_wait_fraction=_finite_or_none(waiting_fraction),
            )
        )
    return shapes


def row_shape(row: RunRow) -> Shape:
    """One run of ``gputui ps --json`` and ``gputui --once --json``, with its progress."""
    progress = row.progress
    return {
        **json_shapes.run_shape(row.run),
        "step": progress.step,
        "total_steps": progress.total_steps,
        "loss_name": progress.loss_name,
        "loss": number_or_word(progress.loss),
        "metric": progress.metric,
        "metric_value": number_or_word(progress.metric_value),
        "steps_per_second": _finite_or_none(progress.steps_per_second),
        "seconds_left": _finite_or_none(progress.seconds_left),
    }


def _finite_or_none(value: float | None) -> float | None:
    """A measurement that JSON knows, as `gputui gpus --json` has it."""
    if value is not None and math.isfinite(value):
        return value
    return None
