"""Processes as lines: the list of their page, the panel on the overview, and the details of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from gputui.core.text import clip_middle
from gputui.core.units import UNKNOWN, age, bytes_text, count_of, duration, gibibytes, index_ranges, percent
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.store.hardware import LOOK_BACK_SECONDS
from gputui.ui.tui.data.snapshot import Snapshot
from gputui.ui.tui.layout.columns import Column, fit_line, rule, wrap
from gputui.ui.tui.layout.lists import Listing, ListSection
from gputui.ui.tui.layout.process_words import script_of
from gputui.ui.tui.layout.run_words import run_style
from gputui.ui.tui.pages.processes.rows import ProcessesState, ProcessRow, arranged, process_rows

_STATES = {"T": "stopped", "t": "traced", "Z": "ended", "D": "waits in the kernel"}

_PLAIN_STATE = "runs or sleeps"

DETAIL_LINES = 5
"""Lines of the details below the list; half of them are the command's at most."""


def process_panel(snapshot: Snapshot, width: int, height: int) -> list[Line]:
    """The processes on the GPUs, those with the most memory first, in exactly ``height`` lines: a heading, the names of
    the columns, the rows."""
    rows = process_rows(snapshot)
    state = ProcessesState()
    return listing(snapshot, rows, arranged(rows, state), state).lines(state, width, height)


def listing(
    snapshot: Snapshot, rows: Sequence[ProcessRow], sections: Sequence[ListSection[ProcessRow]], state: ProcessesState
) -> Listing[ProcessRow]:
    """The list. ``rows`` are all processes, ``sections`` those that the filter leaves, as arranged by ``state``."""
    words = [f"PROCESSES {state.order.words}" if snapshot.processes is not None else "PROCESSES"]
    words[0] += " upwards" * state.is_reversed
    words += ["as a tree"] * state.is_tree
    words += [{"gpu": "per GPU", "run": "per run"}[state.grouping]] if state.grouping else []
    colours = {row.run.run_id: run_style(row.run) for row in snapshot.runs}
    columns = (
        *_COLUMNS,
        Column("RUN", 13, partial(_run, colours), importance=2, gap=2, grow=1, most=26),
        Column("COMMAND", 14, _command, gap=2, grow=8),
    )
    known = [column for column in columns if _is_known(column.head, rows)]
    ours = sum(row.run_id is not None for row in rows)
    notes: list[Span] = [(f"{ours} of runs, {count_of(len(rows) - ours, 'other')}", "dim")] if rows else []
    hidden = sum(gpu.processes is None and gpu.state == "ok" for gpu in snapshot.gpus)
    if hidden:
        notes.insert(0, (f"no list of {count_of(hidden, 'GPU')} from the driver", "warn"))
    empty = "No process is on a GPU, and no run of ours has any."
    if snapshot.past is not None:
        empty = "No process is recorded of that moment."
    return Listing(", ".join(words), known, sections, lambda row: row.key, notes, empty)


def _is_known(head: str, rows: Sequence[ProcessRow]) -> bool:
    """Whether a column has a value: CPU, RAM and TIME are read only for the page, and not of a past moment."""
    values: dict[str, Callable[[ProcessRow], object]] = {
        "SM": lambda row: row.sm_percent,
        "CPU": lambda row: row.memory_bytes,
        "RAM": lambda row: row.memory_bytes,
        "TIME": lambda row: row.running_seconds,
        "RUN": lambda row: row.run_id,
    }
    return head not in values or any(values[head](row) is not None for row in rows)


def totals(rows: Sequence[ProcessRow]) -> list[Span]:
    """How many processes, and their CPU and RAM as far as known."""
    text = f" · {len(rows)}"
    if cpu := [row.cpu_percent for row in rows if row.cpu_percent is not None]:
        text += f" · CPU {percent(sum(cpu))}"
    if ram := [row.memory_bytes for row in rows if row.memory_bytes is not None]:
        text += f" · RAM {bytes_text(sum(ram))}"
    return [(text, "text")]


def facts(row: ProcessRow) -> list[tuple[str, str]]:
    """What is known of a process, by name."""
    run = None if row.run_id is None else row.run_id + ("" if row.rank is None else f" rank {row.rank}")
    unseen = "" if row.start_ticks is not None else " (not visible on this machine: a container's, or outside of ours)"
    idle = None
    if row.is_idle and row.idle_seconds is not None:
        # Samples reach back a day.
        is_capped = row.idle_seconds >= 0.99 * LOOK_BACK_SECONDS
        idle = "over a day" if is_capped else duration(60 * (row.idle_seconds // 60))
    share = "" if row.gpu_memory_percent is None else f", {percent(row.gpu_memory_percent)}"
    known = [
        ("PID", f"{row.pid}{unseen}"),
        ("command", row.command),
        ("parent", row.parent_pid),
        ("user", row.user),
        ("run", run),
        ("GPUs", index_ranges(row.gpus) if row.gpus else None),
        ("GPU memory", None if row.gpu_memory_bytes is None else bytes_text(row.gpu_memory_bytes) + share),
        ("SM", None if row.sm_percent is None else percent(row.sm_percent)),
        ("idle", None if idle is None else f"{idle}: it holds memory of GPUs that compute nothing"),
        ("CPU", None if row.cpu_percent is None else f"{percent(row.cpu_percent)} of a core"),
        ("RAM", None if row.memory_bytes is None else f"{bytes_text(row.memory_bytes)}, not shared"),
        ("running for", None if row.running_seconds is None else duration(row.running_seconds)),
        ("state", None if row.state is None else _STATES.get(row.state, _PLAIN_STATE)),
    ]
    return [(name, str(value)) for name, value in known if value is not None]


def detail_lines(row: ProcessRow, width: int) -> list[Line]:
    """The command and the details of a process below a heading, in `DETAIL_LINES` lines."""
    known = " · ".join(f"{name} {text}" for name, text in facts(row) if name not in ("PID", "command"))
    command = wrap(row.command or "its command cannot be read", width - 2)[: DETAIL_LINES // 2]
    lines = [rule(f"PROCESS {row.pid}", width), *(fit_line([(f" {part}", "text")], width) for part in command)]
    lines += [fit_line([(f" {part}", "dim")], width) for part in wrap(known, width - 2)]
    return [*lines[:DETAIL_LINES], *[fit_line([], width)] * (DETAIL_LINES - len(lines))]


def _pid(row: ProcessRow, width: int) -> list[Span]:
    return [(str(row.pid), "text" if row.start_ticks is not None else "dim")]


def _size(value: int | None) -> str:
    """A size with fixed decimals: ``29.2G``, ``8M``."""
    if value is None:
        return UNKNOWN
    return f"{gibibytes(value)}G" if value >= 0.95 * 2**30 else f"{value / 2**20:.0f}M"


def _gpu_value(row: ProcessRow, text: str) -> list[Span]:
    """A value that only a process on a GPU has."""
    return [(text, "dim" if text == UNKNOWN else "text")] if row.gpus else []


def _host_value(text: str) -> list[Span]:
    return [(text, "dim" if text == UNKNOWN else "text")]


def _run(colours: Mapping[str, str], row: ProcessRow, width: int) -> list[Span]:
    if row.run_id is None:
        return []
    rank = "" if row.rank is None else f" r{row.rank}"
    name = clip_middle(row.run_id, max(1, width - len(rank)))
    return [(name, colours.get(row.run_id, "accent")), (rank, "text")]


def _command(row: ProcessRow, width: int) -> list[Span]:
    parts: list[Span] = [(row.tree, "dim")]
    if (word := _STATES.get(row.state or "")) is not None:
        parts.append((f"[{word}] ", "warn"))
    if row.idle_seconds is not None and row.is_idle:
        parts.append((f"[idle {age(row.idle_seconds)}] ", "warn"))
    script = script_of(row.command or "")
    return [*parts, (script, "text") if script else ("cannot be read", "dim")]


_COLUMNS: tuple[Column[ProcessRow], ...] = (
    Column("PID", 8, _pid, ">"),
    Column("USER", 7, lambda row, _: [(row.user or UNKNOWN, "dim")], gap=1, grow=1, most=12),
    Column("GPU", 3, lambda row, _: [(index_ranges(row.gpus), "text")], ">", gap=1),
    Column("GPU MEM", 7, lambda row, _: _gpu_value(row, _size(row.gpu_memory_bytes)), ">", gap=1),
    Column("", 4, lambda row, _: _gpu_value(row, percent(row.gpu_memory_percent)), ">", gap=1),
    Column("SM", 4, lambda row, _: _gpu_value(row, percent(row.sm_percent)), ">", importance=3, gap=1),
    Column("CPU", 5, lambda row, _: _host_value(percent(row.cpu_percent)), ">", importance=1, gap=1),
    Column("RAM", 6, lambda row, _: _host_value(_size(row.memory_bytes)), ">", importance=4, gap=1),
    Column("TIME", 6, lambda row, _: [(age(row.running_seconds), "dim")], ">", importance=5, gap=1),
)
