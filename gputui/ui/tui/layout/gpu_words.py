"""A GPU in styled words: its run or user, its condition, its links."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gputui.core.text import cell_width, clean, clip_middle
from gputui.core.units import UNKNOWN, age, byte_rate
from gputui.metrics.draw.raster import Span
from gputui.metrics.progress import RankRow
from gputui.runs.gpu_conditions import EXCLUDED, condition_of, users_of
from gputui.runs.process_words import process_words
from gputui.store.hardware import GpuView, Quarantined
from gputui.ui.tui.layout.columns import clip_words
from gputui.ui.views.run_words import run_style, title_of
from gputui.ui.views.snapshot import Snapshot
from gputui.ui.views.words import dated_clock

BOTH_ENDS_WIDTH = 24
"""Least width of a command that is cut in its middle; a shorter one ends at a word."""

LEAST_NAME = 7
"""Cells of a run's or a script's name, below which it tells nothing: the rank makes room, or the user stands alone."""

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
    row = next((row for row in snapshot.runs if row.run.run_id == gpu.run_id), None)
    rank = None if row is None or gpu.rank is None or gpu.shared_with else row.progress.ranks.get(gpu.rank)
    machine = snapshot.machine
    return GpuRow(
        gpu,
        rank,
        "accent" if row is None else run_style(row.run),
        history.utilization_percent if history else (),
        machine.quarantined.get(gpu.uuid),
        machine.xids.get(gpu.uuid, 0),
        _parked_seconds(snapshot, gpu),
        machine.promised.get(gpu.uuid),
    )


def _parked_seconds(snapshot: Snapshot, gpu: GpuView) -> float | None:
    alert = next((one for one in snapshot.alerts.last if one.rule == PARKED and one.subject_id == gpu.uuid), None)
    if alert is None:
        return None
    # Imported on first use: most screens show no alerts.
    from gputui.recovery.watch.rules import RULES

    return snapshot.at - alert.raised_at + RULES[PARKED].for_seconds


def who(row: GpuRow, width: int) -> list[Span]:
    """The run and rank on this GPU, the number of runs that share it, another user's process, or ``free``."""
    gpu = row.gpu
    if gpu.state == "lost":
        return [("✗ lost", "bad")]
    if gpu.state == "error":
        return [("✗ unreadable", "bad")]
    marks: list[Span] = [(" slow", "warn")] if row.rank is not None and row.rank.is_slow else []
    marks += [(" ⊘", "warn")] if row.quarantined is not None else []
    if gpu.shared_with:
        return [(f"{len(gpu.run_ids)} runs", "accent")]
    if gpu.run_id is not None:
        marks = [(f" {gpu.shares[gpu.run_id]:g}", "dim"), *marks] if gpu.shared_by == "" else marks
        rank = f" r{gpu.rank}" if gpu.rank is not None else ""
        name = title_of(gpu.run_id, gpu.run_name)
        room = width - len(rank) - sum(len(text) for text, _ in marks)
        if room < min(LEAST_NAME, cell_width(name)):
            room, rank = room + len(rank), ""
        shown = clip_middle(name, max(1, room))
        return [(shown, row.style), (rank, "text"), *marks]
    if row.quarantined is not None:
        return [("⊘ quarantine", "warn")]
    condition = condition_of(gpu)
    if condition.is_free and condition.processes and row.promised is None:
        words = f"free, beside {users_of(condition.processes)}"
        return [(words if cell_width(words) <= width else "free", "dim")]
    if condition.is_free:
        promised = "" if row.promised is None else clean(row.promised)
        fits = cell_width(f"promised to {promised}") <= width
        return [(f"{'promised to' if fits else 'for'} {promised}" if promised else "free", "dim")]
    if gpu.facts.get("mig_mode"):
        return [("MIG", "dim")]
    if gpu.locked_by is not None:
        return [(f"held by {clean(gpu.locked_by)}", "text")]
    if gpu.is_excluded and not gpu.processes:
        return [(EXCLUDED.removeprefix("is "), "dim")]
    if gpu.processes is None:
        return [(UNKNOWN, "dim")]
    if not gpu.processes:
        return [("no visible process", "warn")]
    first = max(gpu.processes, key=lambda process: process.memory_bytes or 0)
    more = "" if len(gpu.processes) == 1 else f" +{len(gpu.processes) - 1}"
    words = process_words(first)
    short = " ".join(words.split()[:3])
    user = clean(first.user or "")
    if user and cell_width(short) > width - len(more) < cell_width(f"{user} · ") + LEAST_NAME:
        words = short = user
    room = max(cell_width(short), width - len(more))
    # Jobs of one script differ at the end of their commands.
    shorten = clip_middle if room >= BOTH_ENDS_WIDTH else clip_words
    words = shorten(words, room) + more
    idle = "" if row.parked_seconds is None else f" · idle {age(row.parked_seconds)}"
    # With its arguments, without them, or only the user.
    for name in (words, short, user or words):
        if idle and cell_width(name) + len(idle) <= width:
            return [(name, "text"), (idle, "warn")]
    return [(words, "text")]


def with_indices(text: str, gpus: Sequence[GpuView]) -> str:
    """A text in which GPUs have their index in place of their UUID."""
    for gpu in gpus:
        text = text.replace(gpu.uuid, f"GPU {gpu.index}")
    return text


def is_free(gpu: GpuView) -> bool:
    """Return whether a run can start on this GPU, as far as its samples and processes say."""
    return condition_of(gpu).is_free


def held_back(row: GpuRow, width: int = 0) -> list[Span]:
    """The reasons of throttled clocks, in words."""
    reasons = row.gpu.throttle_reasons
    if not reasons:
        if reasons is not None:
            return []
        return [(UNKNOWN, "dim")]
    words = ", ".join(reasons)
    return [(clean(words), "warn" if any(alarming in words for alarming in _ALARMING) else "dim")]


def pcie_link(gpu: GpuView) -> list[Span]:
    """The PCIe link as ``5×16``: generation and lanes, marked if it has fewer lanes than possible. A low generation is
    normal: an idle GPU lowers it to save power."""
    generation, lanes = gpu.slow.get("pcie_generation"), gpu.slow.get("pcie_width")
    if generation is None and lanes is None:
        return [(UNKNOWN, "dim")]
    most = gpu.facts.get("pcie_width_max")
    is_narrow = lanes is not None and most is not None and lanes < most
    text = f"{UNKNOWN if generation is None else generation}×{UNKNOWN if lanes is None else lanes}"
    if is_narrow:
        return [(f"▲{text}", "warn")]
    return [(text, "dim")]


def traffic(gpu: GpuView, link: str) -> list[Span]:
    """The traffic over ``pcie`` or ``nvlink``, in bytes per second: ``↓1.2G ↑400M``."""
    received = gpu.slow.get(f"{link}_received_bytes_per_second")
    sent = gpu.slow.get(f"{link}_sent_bytes_per_second")
    if received is None and sent is None:
        return [(UNKNOWN, "dim")]
    return [(f"↓{_short_rate(received)} ↑{_short_rate(sent)}", "text")]


def _short_rate(rate: float | None) -> str:
    return byte_rate(rate).replace("B/s", "").replace(" ", "")


def faults(row: GpuRow) -> list[Span] | None:
    """Faults of the hardware, the worst first; None if none is known."""
    gpu, slow = row.gpu, row.gpu.slow
    parts: list[Span] = []
    if slow.get("row_remap_failed"):
        parts.append(("row remap failed", "bad"))
    uncorrected = slow.get("ecc_uncorrected")
    if uncorrected:
        parts.append((f"{uncorrected} ECC uncorr.", "bad"))
    if row.xids:
        parts.append((f"XID {gpu.event_code}" if row.xids == 1 and gpu.event_code else f"{row.xids} XIDs", "warn"))
    if slow.get("row_remap_pending"):
        parts.append(("remap due", "warn"))
    return [piece for number, part in enumerate(parts) for piece in ((" · ", "dim"), part)[number == 0 :]] or None


def health(row: GpuRow, width: int = 0) -> list[Span]:
    """The `faults`; ``ok`` where the driver says that there is none."""
    names = ("ecc_uncorrected", "row_remap_failed", "row_remap_pending")
    is_known = any(row.gpu.slow.get(name) is not None for name in names)
    return faults(row) or [("ok" if is_known else UNKNOWN, "dim")]


def lost(row: GpuRow, now: float) -> list[Span]:
    """The time at which a GPU was lost, and the driver's last report."""
    gpu = row.gpu
    at = gpu.event_at if gpu.event_at is not None else gpu.last_seen_at
    spans: list[Span] = [(f"✗ lost {dated_clock(at, now)}", "bad")]
    if gpu.event_text:
        code = f"XID {gpu.event_code}: " if gpu.event_code is not None else ""
        text = clean(gpu.event_text)
        spans.append((" · " + (text if text.startswith(code) else code + text), "text"))
    return spans
