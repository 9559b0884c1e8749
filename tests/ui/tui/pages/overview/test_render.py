"""The lines of the panes, as text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.core.text import cell_width
from gputui.metrics.draw.parts import Line
from gputui.store.database import open_reader
from gputui.store.events import EventView
from gputui.store.rollups import HostHistory
from gputui.ui.tui.data.reader import SnapshotReader
from gputui.ui.tui.data.snapshot import Interest, Snapshot
from gputui.ui.tui.layout.strips import head_line, host_line, notice_lines
from gputui.ui.tui.layout.words import dated_clock
from gputui.ui.tui.pages.overview.areas import share_rows
from gputui.ui.tui.pages.overview.events import event_rows, events_lines
from gputui.ui.tui.pages.overview.gpus import gpu_lines
from gputui.ui.tui.pages.overview.run_order import matching
from gputui.ui.tui.pages.overview.runs import RowContext, RunsState, runs_lines
from tests.texts import mentions
from tests.ui.tui.filling import NOW, Filler


def text_of(lines: Iterable[Line]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def widths(lines: Iterable[Line]) -> set[int]:
    return {sum(cell_width(text) for text, _ in line) for line in lines}


def styles_of(line: Sequence[tuple[str, str]], word: str) -> set[str]:
    return {style for text, style in line if word in text}


def read(workspace: Workspace, run_id: str | None = None, now: float = NOW) -> Snapshot:
    with closing(open_reader(workspace.database)) as connection:
        return SnapshotReader(workspace).read(connection, now, Interest(run_id))


@pytest.fixture
def overnight(filler: Filler) -> None:
    filler.overnight()


@pytest.fixture
def snapshot(overnight: None, workspace: Workspace) -> Snapshot:
    return read(workspace)


# --- GPUs


def test_gpu_rows_at_80_columns(snapshot: Snapshot) -> None:
    lines = gpu_lines(snapshot, 80, 9)
    assert widths(lines) == {80}
    assert text_of(lines) == [
        "  #  UTIL         MEMORY          TEMP    POWER  RUN / USER          STEP/S DATA",
        "  0   97% █████▉   71/80G  █████▍  64° 612/700W  gpt2-124m-1 r0        3.33   2%",
        "  1   96% █████▊   71/80G  █████▍  66° 608/700W  gpt2-124m-1 r1        3.33   2%",
        "  2   12% ▊░░░░░   71/80G  █████▍  58° 310/700W  gpt2-…4m-1 r2 slow    2.22  27%",
        "  3   95% █████▊   71/80G  █████▎ ▲88° 655/700W  gpt2-124m-1 r3        3.33   2%",
        "  4    0% ░░░░░░  0.4/80G  ▏░░░░░  34°  71/700W  free",
        "  5    0% ░░░░░░   22/80G  █▋░░░░  36°  72/700W  alice · python",
        "  6   88% █████▎   40/80G  ███░░░  61° 540/700W  vit-b16-1 r0          3.33   2%",
        "  7 ✗ lost 03:02:11 · XID 79: GPU has fallen off the bus",
    ]


def test_unknown_values_are_dashes_and_never_zero(filler: Filler, workspace: Workspace) -> None:
    filler.agent()
    filler.gpus(1)
    filler.sample(0, utilization=None, memory_gib=None, temperature=None, power=None, throttle=None)
    assert text_of(gpu_lines(read(workspace), 80, 5))[1].split() == ["0", "–", "–", "–", "–", "free"]


def test_stale_rows_are_dim_as_a_whole_and_the_silence_is_told(filler: Filler, workspace: Workspace) -> None:
    filler.overnight()
    filler.connection.execute("UPDATE agent SET heartbeat_at = ?", (NOW + 14,))
    later = read(workspace, now=NOW + 14)
    assert {style for _, style in gpu_lines(later, 80, 9)[1]} <= {"stale", "text"}
    [silence] = text_of(notice_lines(later, None, 80))
    assert mentions(silence, " ▲ driver silent", "14 s", "03:12:44")
    filler.connection.execute("UPDATE agent SET gpu_problem = 'it ended'")
    assert text_of(notice_lines(read(workspace, now=NOW + 14), None, 80)) == [" ▲ it ended"]


def test_an_agent_that_stopped_is_not_blamed_on_the_driver(filler: Filler, workspace: Workspace) -> None:
    filler.overnight()
    later = read(workspace, now=NOW + 60)
    assert mentions(text_of(notice_lines(later, None, 100))[0], "agent", "1 min")
    assert text_of(notice_lines(later, "The agent is gone", 80)) == [" ▲ The agent is gone"]


# --- strips


def shared(height: int, *, gpus: int = 8, runs: int = 7, events: int = 2, **more: Any) -> Any:
    """How so many lines are shared out."""
    given = {"cards": lambda most: 0, "has_gpus": gpus > 0, "is_folded": False, **more}
    return share_rows(height, gpus=lambda most: min(most, gpus + 1 if gpus else 2), runs=runs, events=events, **given)


def cards(most: int) -> int:
    return 12 if most >= 12 else 0


def test_head_and_host(snapshot: Snapshot) -> None:
    assert text_of([head_line(snapshot, 80, "ws-kepler", demo=False, readonly=False)]) == [
        " gputui · ws-kepler · driver 580.95.05            1 queued  2 running  03:12:44"
    ]
    assert "simulated GPUs" in text_of([head_line(snapshot, 80, "x", demo=True, readonly=True)])[0]
    assert text_of([host_line(snapshot, 80)]) == [
        " host  cpu 34%  ram 88/256 GiB  disk 71% full  shm 4%  read 1.2 GB/s"
    ]
    assert text_of([host_line(Snapshot(NOW), 80)]) == [" host  no sample yet"]
    busy = HostHistory((None, 0.0, 50.0, 100.0), (None, 0.0, 128.0 * 2**30, 256.0 * 2**30), *[(None,) * 4] * 4)
    [wide] = text_of([host_line(replace(snapshot, host_history=busy), 160)])
    assert re.search(r"cpu 34% [▁▂▃▄▅▆▇█]+ ", wide) and re.search(r"256 GiB [▁▂▃▄▅▆▇█]+ ", wide)


# --- runs and events


def test_losses_and_steps_are_never_cut(snapshot: Snapshot) -> None:
    row = snapshot.runs[0]

    def line(width: int, **progress: float) -> str:
        changed = replace(row, progress=replace(row.progress, **progress))
        return text_of(runs_lines([changed], RunsState(), RowContext.of(snapshot, {}), width, 2))[1]

    losses = {1.9421: "1.942", 0.012345: "0.01235", 0.004332: "0.00433", 0.00043: "4.3e-4", 123456.0: "123456",
              0.2052: "0.205", 3.0: "3.000", 0.0: "0"}  # fmt: skip
    for loss, shown in losses.items():
        assert f" {shown}  6 h" in line(80, loss=loss) and "…" not in line(80, loss=loss), loss
    for step, total, shown in ((3_060, 8_000, "3 060/8 000"), (49_026, 120_000, "49 026/120k"),
                               (12_345_678, 99_000_000, "12 345 678")):  # fmt: skip
        assert f" {shown} " in line(120, step=step, total_steps=total), step


def test_the_filter_needs_every_word(snapshot: Snapshot) -> None:
    assert [row.run.run_id for row in matching(snapshot.runs, "running vit")] == ["vit-b16-1"]
    assert [row.run.run_id for row in matching(snapshot.runs, "KeyError")] == ["resnet50-2"]
    assert matching(snapshot.runs, "nothing like it") == []
    assert "No run matches" in text_of(runs_lines([], RunsState(None, 0, "x"), RowContext(NOW), 80, 3))[1]
    assert "Press n" in text_of(runs_lines([], RunsState(), RowContext(NOW), 80, 3))[1]


# --- layout


def test_the_lines_are_shared_out_without_rest() -> None:
    wrong = []
    areas = [(8, 4, 3), (0, 0, 0), (16, 40, 50), (1, 1, 0)]
    for height, (gpus, runs, events), is_folded in itertools.product(range(2, 60), areas, (False, True)):
        rows = shared(height, gpus=gpus, runs=runs, events=events, cards=cards, is_folded=is_folded)
        if sum(rows) != height or min(rows) < 0 or (height >= 16 and min(rows.runs, rows.events) < 2):
            wrong.append((height, gpus, runs, events, is_folded, rows))
    assert wrong == []


def test_a_time_of_another_day_has_its_day() -> None:
    shown = {0: "03:12:44", 3 * 3600: "00:12:44", 4 * 3600: "Fri 23:12", 86_400: "Fri 03:12",
             5 * 86_400: "Mon 03:12", 6 * 86_400: "15 Nov 03:12", 400 * 86_400: "17 Oct 2025 03:12"}  # fmt: skip
    assert {ago: dated_clock(NOW - ago, NOW) for ago in shown} == shown


def test_events_name_each_day_once() -> None:
    events = [EventView(number, NOW - ago, "info", None, None, None, None, None, "") for number, ago in
              enumerate((200_000.0, 100_000.0, 98_000.0, 60.0, 0.0))]  # fmt: skip
    days = ("Wed 18 Nov 2026", "Thu 19 Nov 2026", "Sat 21 Nov 2026")

    def rows(height: int, cursor: int | None = None) -> list[object]:
        return [row if isinstance(row, str) else row.event_id for row in event_rows(events, NOW, height, cursor)]

    assert rows(9) == [days[0], 0, days[1], 1, 2, days[2], 3, 4]
    assert rows(6) == [1, 2, days[2], 3, 4] and rows(3) == [3, 4]
    assert rows(4, cursor=0) == [days[0], 0, days[1]]
    # Unless it is of today, an event in the first row has its day.
    tops = [text_of(events_lines(events, NOW, 40, *shown))[1] for shown in ((6,), (2, 2), (3, 3))]
    assert [top[1:10] for top in tops] == ["Thu 23:26", "Thu 23:59", "03:11:44 "]
