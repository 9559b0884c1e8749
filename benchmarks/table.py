"""The figures of a run of all benchmarks as one table: ours, the aim, whether it was reached, and the peers'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import figures
from benchmarks.figures import NOTHING, Figure, Results, Unit
from benchmarks.trainer.rows import TRAINER_FIGURES
from benchmarks.tui import GPU_COUNTS
from benchmarks.watching import SIZES, size_word


def _screen(columns: int, rows: int, bytes_aim: float) -> list[Figure]:
    size = size_word(columns, rows)

    def figure(text: str, unit: Unit, *path: str, **aims: Any) -> Figure:
        where = (size, *path)
        return Figure("tui", f"screen {size}, {text}", unit, where, peer_path=where, **aims)

    return [
        figure("CPU of a core", "%", "idle", "cpu_percent", aim=1.6, aim_is="at most"),
        figure("CPU with a key a second", "%", "keys", "cpu_percent", aim=5.0),
        figure("to the terminal", "bytes/s", "idle", "bytes_per_second", aim=bytes_aim),
        figure("the same with a key a second", "bytes/s", "keys", "bytes_per_second"),
        figure("memory (RSS)", "MB", "rss_bytes"),
        figure("memory (PSS)", "MB", "pss_bytes"),
        figure("calls to NVML", "/s", "idle", "nvml_calls_per_second", aim=70.0),
        Figure("tui", f"screen {size}, key to paint, p50", "s", (size, "key_to_paint", "p50_seconds")),
        Figure("tui", f"screen {size}, key to paint, p99", "s", (size, "key_to_paint", "p99_seconds"), 0.05),
    ]


def _gpus(count: int) -> list[Figure]:
    where = f"gpus_{count}"
    text = f"{count} GPU{'s' if count > 1 else ''}"
    return [
        Figure("tui", f"{text}, CPU of a core", "%", (where, "idle", "cpu_percent")),
        Figure("tui", f"{text}, to the terminal", "bytes/s", (where, "idle", "bytes_per_second")),
        Figure("tui", f"{text}, key to paint, p99", "s", (where, "key_to_paint", "p99_seconds"), 0.05),
    ]


CROWD: tuple[Figure, ...] = (
    Figure("tui", "crowd, start to first full frame", "s", ("crowd", "first_frame_seconds"), 0.35),
    Figure("tui", "crowd, key to paint, p50", "s", ("crowd", "key_to_paint", "p50_seconds")),
    Figure("tui", "crowd, key to paint, p99", "s", ("crowd", "key_to_paint", "p99_seconds"), 0.05),
    Figure("tui", "a dialog opened or closed, p50", "s", ("crowd", "dialog_to_paint", "p50_seconds")),
    Figure("tui", "a dialog opened or closed, p99", "s", ("crowd", "dialog_to_paint", "p99_seconds"), 0.05),
    Figure("tui", "a run of 1 M values opened, first time", "s", ("crowd", "open_page", "first_seconds"), 0.3),
    Figure("tui", "a run of 1 M values opened again", "s", ("crowd", "open_page", "median_seconds"), 0.3),
    Figure("tui", "its live page at 1 Hz, CPU of a core", "%", ("crowd", "live_page", "idle", "cpu_percent"), 1.6),
    Figure(
        "tui", "its live page, to the terminal", "bytes/s", ("crowd", "live_page", "idle", "bytes_per_second"), 2000
    ),
    Figure("tui", "terminal read nothing for 10 s, then a key", "s", ("crowd", "stalled", "caught_up_seconds"), 0.5),
    Figure("tui", "what had piled up meanwhile", "kB", ("crowd", "stalled", "bytes_after")),
)
"""Eight GPUs, 300 processes, 100 runs in history, 1 M values in the open chart."""


FIGURES: tuple[Figure, ...] = (
    Figure("record", "record, CPU of a core", "%", ("cpu_percent",), 0.5),
    Figure("record", "record, memory (RSS)", "MB", ("rss_bytes",), 60e6),
    Figure("record", "record, memory (PSS)", "MB", ("pss_bytes",)),
    Figure("record", "record, calls to NVML", "/s", ("nvml_calls_per_second",), 70.0),
    Figure(
        "disk",
        "record, a day of samples of 8 GPUs at 1 Hz",
        "MB",
        path=("raw_bytes_per_day",),
        aim=70e6,
        aim_is="at most",
    ),
    Figure("disk", "record, rolling up, CPU of a core", "%", ("tidying_cpu_percent",)),
    Figure("disk", "record, the longest turn of that", "ms", ("longest_turn_seconds",), 0.05),
    *(figure for size, aim in zip(SIZES, (1500.0, 2000.0), strict=True) for figure in _screen(*size, aim)),
    *(figure for count in GPU_COUNTS for figure in _gpus(count)),
    *CROWD,
    *(
        Figure(
            "start",
            f"start to first full frame, {size_word(*size)}",
            "s",
            (size_word(*size), "median_seconds"),
            0.4,
            peer_path=(size_word(*size), "first_frame_seconds"),
        )
        for size in SIZES
    ),
    Figure("ingest", "metrics lines stored", "/s", path=("lines_per_second",), aim=100_000.0, aim_is="at least"),
    Figure("curves", "four charts of a run of 1 M lines opened", "s", ("open_seconds",), 0.3),
    Figure("curves", "the same zoomed into, the slowest width", "s", ("zoom_seconds",), 0.05),
    Figure("curves", "envelopes, of what the lines take", "%", ("envelope_percent",), 15.0),
    Figure("moments", "a past moment of the overview, p95", "s", ("overview_p95_seconds",), 0.1),
    Figure("moments", "a past moment of a run of 1 M lines, p95", "s", ("page_p95_seconds",), 0.1),
    Figure("latency", "line written to stored, p50", "s", ("stored_p50_seconds",)),
    Figure("latency", "line written to stored, p99", "s", ("stored_p99_seconds",)),
    Figure("latency", "line written to visible, p50", "s", ("visible_p50_seconds",)),
    Figure("latency", "line written to visible, p99", "s", ("visible_p99_seconds",), 0.5),
    Figure("latency", "a live run's page 200x50, CPU of a core", "%", ("page_cpu_percent",)),
    Figure("latency", "a live run's page 200x50, to the terminal", "bytes/s", ("page_bytes_per_second",)),
    Figure("death", "worker's death to the next attempt's first step", "s", ("seconds",)),
    *TRAINER_FIGURES,
)

PEERS = ("nvitop", "nvtop")


def render(results: Results) -> str:
    """The table as text, a line for each figure that was asked for."""
    peers = results.get("peers")
    rows = [["figure", "gputui", "aim", "reached", *(_heading(name, peers) for name in PEERS)]]
    for figure in figures.asked_for(FIGURES, results):
        rows.append([*figures.row(figure, results), *(_peer(name, figure, peers) for name in PEERS)])
    return figures.layout(rows)


def missed(results: Results) -> list[str]:
    """The figures that were measured and miss their aim."""
    return figures.missed(FIGURES, results)


def _heading(name: str, peers: Mapping[str, Any] | None) -> str:
    peer = None if peers is None else peers.get(name)
    return name if peer is None else f"{name} {peer['version']}"


def _peer(name: str, figure: Figure, peers: Mapping[str, Any] | None) -> str:
    if figure.peer_path is None:
        return ""
    if peers is None:
        return NOTHING
    if peers.get(name) is None:
        return "not installed"
    return figures.with_unit(figures.at(peers[name], figure.peer_path), figure.unit)
