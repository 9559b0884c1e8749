"""A GPU in styled words: its run or user, its condition, its links."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gputui.core.text import cell_width, clean, clip_middle
from gputui.core.units import UNKNOWN, age, byte_rate, count
from gputui.metrics.draw.parts import Span
from gputui.metrics.progress import RankRow
from gputui.runs.gpu_conditions import EXCLUDED, condition_of, users_of
from gputui.runs.process_words import process_words
from gputui.store.hardware import GpuView, ProcessView, Quarantined
from gputui.ui.tui.layout.columns import clip_words
from gputui.ui.views.run_words import run_style, title_of
from gputui.ui.views.snapshot import Snapshot
from gputui.ui.views.words import dated_clock

BOTH_ENDS_WIDTH = 24
"""Least width of a command that is cut in its middle; a shorter one ends at a word."""

LEAST_NAME = 7
"""Cells of a run's or a script's name, below which it tells nothing: the rank makes room, or the user stands alone."""

WAITING_FRACTION = 0.2
"""A rank that waits longer than this share of its step for data is marked."""

PARKED = "gpu_parked"
"""The alert rule about memory held by processes that compute nothing."""

# Words of throttle reasons that mean heat or a fault. A power cap is normal for a busy GPU.
_ALARMING = ("thermal", "hardware", "brake")


class GpuRow(Struct, frozen=True):
    """A GPU and what belongs to it.

    Attributes:
        rank: the metrics of the rank on it.
        style: the colour of its run.
        utilizations: its utilisation in the last minutes, percent.
        quarantined: why it is in quarantine.
        xids: the number of XIDs in the last day.
        parked_seconds: how long its memory has been held by idle processes, if that is an alert.
        promised: the queued run that gets it next.
    """

    gpu: GpuView
    rank: RankRow | None = None
    style: str = "accent"
    utilizations: tuple[float | None, ...] = ()
    quarantined: Quarantined | None = None
    xids: int = 0
    parked_seconds: float | None = None
    promised: str | None = None


def gpu_row(snapshot: Snapshot, gpu: GpuView) -> GpuRow:
    """The row of a GPU."""
    history = snapshot.gpu_history.get(gpu.uuid)
    utilizations: tuple[float | None, ...] = ()
    if history:
        utilizations = history.utilization_percent
    rank = None
    style = "accent"
    row = next((row for row in snapshot.runs if row.run.run_id == gpu.run_id), None)
    if row is not None:
        style = run_style(row.run)
        if gpu.rank is not None and not gpu.shared_with:
            rank = row.progress.ranks.get(gpu.rank)
    machine = snapshot.machine
    return GpuRow(
        gpu,
        rank,
        style,
        utilizations=utilizations,
        quarantined=machine.quarantined.get(gpu.uuid),
        xids=machine.xids.get(gpu.uuid, 0),
        parked_seconds=_parked_seconds(snapshot, gpu),
        promised=machine.promised.get(gpu.uuid),
    )


def _parked_seconds(snapshot: Snapshot, gpu: GpuView) -> float | None:
    """How long an alert says that idle processes hold the memory of a GPU."""
    for alert in snapshot.alerts:
        if alert.rule == PARKED and alert.subject_id == gpu.uuid:
            # Imported on first use: most screens show no alerts.
            from gputui.recovery.watch.rules import RULES

            return snapshot.at - alert.raised_at + RULES[PARKED].for_seconds
    return None


def user_spans(row: GpuRow, width: int) -> list[Span]:
    """The run and rank on this GPU, the number of runs that share it, another user's process, or ``free``."""
    gpu = row.gpu
    if gpu.state == "lost":
        return [("✗ lost", "bad")]
    if gpu.state == "error":
        return [("✗ unreadable", "bad")]
    if gpu.shared_with:
        return [(f"{len(gpu.run_ids)} runs", "accent")]
    if gpu.run_id is not None:
        return _run_and_rank(row, gpu.run_id, width)
    if row.quarantined is not None:
        return [("⊘ quarantine", "warn")]
    condition = condition_of(gpu)
    if condition.is_free and row.promised is not None:
        promised = f"promised to {clean(row.promised)}"
        if cell_width(promised) > width:
            promised = f"for {clean(row.promised)}"
        return [(promised, "dim")]
    if condition.is_free:
        text = "free"
        if condition.processes:
            text += f", beside {users_of(condition.processes)}"
        if cell_width(text) > width:
            text = "free"
        return [(text, "dim")]
    if gpu.facts.mig_mode:
        return [("MIG", "dim")]
    if gpu.locked_by is not None:
        return [(f"held by {clean(gpu.locked_by)}", "text")]
    if gpu.is_excluded and not gpu.processes:
        return [(EXCLUDED.removeprefix("is "), "dim")]
    if gpu.processes is None:
        return [(UNKNOWN, "dim")]
    if not gpu.processes:
        return [("no visible process", "warn")]
    return _foreign_process(gpu.processes, row.parked_seconds, width)


def _run_and_rank(row: GpuRow, run_id: str, width: int) -> list[Span]:
    """A run with its rank on a GPU: ``resnet-3 r1 slow``."""
    gpu = row.gpu
    marks: list[Span] = []
    if gpu.shared_by == "":
        marks.append((f" {gpu.shares[run_id]:g}", "dim"))
    if row.rank is not None and row.rank.is_slow:
        marks.append((" slow", "warn"))
    if row.quarantined is not None:
        marks.append((" ⊘", "warn"))
    rank = "" if gpu.rank is None else f" r{gpu.rank}"
    name = title_of(run_id, gpu.run_name)
    room = width - len(rank) - sum(len(text) for text, _ in marks)
    if room < min(LEAST_NAME, cell_width(name)):
        room = room + len(rank)
        rank = ""
    return [(clip_middle(name, max(1, room)), row.style), (rank, "text"), *marks]


def _foreign_process(processes: Sequence[ProcessView], parked_seconds: float | None, width: int) -> list[Span]:
    """The process with the most memory, the number of others, and for how long it has been idle."""
    largest = max(processes, key=lambda process: process.memory_bytes or 0)
    more = "" if len(processes) == 1 else f" +{len(processes) - 1}"
    command = process_words(largest)
    short = " ".join(command.split()[:3])
    user = clean(largest.user or "")
    if user and cell_width(short) > width - len(more) < cell_width(f"{user} · ") + LEAST_NAME:
        command = short = user
    room = max(cell_width(short), width - len(more))
    # Jobs of one script differ at the end of their commands.
    shorten = clip_middle if room >= BOTH_ENDS_WIDTH else clip_words
    command = shorten(command, room) + more
    if parked_seconds is not None:
        idle = f" · idle {age(parked_seconds)}"
        # With its arguments, without them, or only the user.
        for name in (command, short, user or command):
            if cell_width(name) + len(idle) <= width:
                return [(name, "text"), (idle, "warn")]
    return [(command, "text")]


def with_indices(text: str, gpus: Sequence[GpuView]) -> str:
    """A text in which GPUs have their index in place of their UUID."""
    for gpu in gpus:
        text = text.replace(gpu.uuid, f"GPU {gpu.index}")
    return text


def is_free(gpu: GpuView) -> bool:
    """Return whether a run can start on this GPU, as far as its samples and processes say."""
    return condition_of(gpu).is_free


def throttle_spans(row: GpuRow, width: int = 0) -> list[Span]:
    """The reasons of throttled clocks, in words."""
    reasons = row.gpu.throttle_reasons
    if reasons is None:
        return [(UNKNOWN, "dim")]
    if not reasons:
        return []
    text = ", ".join(reasons)
    style = "warn" if any(word in text for word in _ALARMING) else "dim"
    return [(clean(text), style)]


def pcie_spans(gpu: GpuView) -> list[Span]:
    """The PCIe link as ``5×16``: generation and lanes, marked if it has fewer lanes than possible. A low generation is
    normal: an idle GPU lowers it to save power."""
    generation = gpu.slow.pcie_generation
    lanes = gpu.slow.pcie_width
    if generation is None and lanes is None:
        return [(UNKNOWN, "dim")]
    most = gpu.facts.pcie_width_max
    is_narrow = lanes is not None and most is not None and lanes < most
    text = f"{count(generation)}×{count(lanes)}"
    if is_narrow:
        return [(f"▲{text}", "warn")]
    return [(text, "dim")]


def traffic_spans(received: float | None, sent: float | None) -> list[Span]:
    """The traffic over a link to and from a GPU, in bytes per second: ``↓1.2G ↑400M``."""
    if received is None and sent is None:
        return [(UNKNOWN, "dim")]
    return [(f"↓{_short_rate(received)} ↑{_short_rate(sent)}", "text")]


def _short_rate(rate: float | None) -> str:
    return byte_rate(rate).replace("B/s", "").replace(" ", "")


def fault_spans(row: GpuRow) -> list[Span] | None:
    """Faults of the hardware, the worst first; None if none is known."""
    gpu = row.gpu
    slow = row.gpu.slow
    parts: list[Span] = []
    if slow.row_remap_failed:
        parts.append(("row remap failed", "bad"))
    uncorrected = slow.ecc_uncorrected
    if uncorrected:
        parts.append((f"{uncorrected} ECC uncorr.", "bad"))
    if row.xids == 1 and gpu.event_code:
        parts.append((f"XID {gpu.event_code}", "warn"))
    elif row.xids:
        parts.append((f"{row.xids} XIDs", "warn"))
    if slow.row_remap_pending:
        parts.append(("remap due", "warn"))
    if not parts:
        return None
    spans = [parts[0]]
    for part in parts[1:]:
        spans += [(" · ", "dim"), part]
    return spans


def health_spans(row: GpuRow, width: int = 0) -> list[Span]:
    """The `fault_spans`; ``ok`` where the driver says that there is none."""
    slow = row.gpu.slow
    spans = fault_spans(row)
    if spans:
        return spans
    if (slow.ecc_uncorrected, slow.row_remap_failed, slow.row_remap_pending) != (None, None, None):
        return [("ok", "dim")]
    return [(UNKNOWN, "dim")]


def lost_spans(row: GpuRow, now: float) -> list[Span]:
    """The time at which a GPU was lost, and the driver's last report."""
    gpu = row.gpu
    at = gpu.last_seen_at if gpu.event_at is None else gpu.event_at
    spans: list[Span] = [(f"✗ lost {dated_clock(at, now)}", "bad")]
    if gpu.event_text:
        text = clean(gpu.event_text)
        if gpu.event_code is not None:
            code = f"XID {gpu.event_code}: "
            text = code + text.removeprefix(code)
        spans.append((f" · {text}", "text"))
    return spans
