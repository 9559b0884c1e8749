"""The lines of the panes, as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import closing

import pytest
from msgspec.structs import replace

from gputui.charts.cells import cell_width
from gputui.charts.chart import Line
from gputui.config import Workspace
from gputui.store.database import open_reader
from gputui.store.rollups import HostHistory
from gputui.tui.data.reader import SnapshotReader
from gputui.tui.data.snapshot import Interest, Snapshot
from gputui.tui.layout.columns import between, fitting, rule, wrap
from gputui.tui.layout.strips import (
    aggregate_charts,
    aggregate_heads,
    aggregate_line,
    demo_line,
    gpu_totals,
    head_line,
    host_line,
    notice_lines,
    power_unit,
)
from gputui.tui.layout.words import clock, moment
from gputui.tui.pages.overview.areas import share_rows
from gputui.tui.pages.overview.events import events_lines
from gputui.tui.pages.overview.gpu_cards import busy_gpus
from gputui.tui.pages.overview.gpus import gpu_lines
from gputui.tui.pages.overview.run_order import matching
from gputui.tui.pages.overview.runs import RowContext, RunsState, runs_lines
from tests.tui.filling import NOW, Filler


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


def test_wide_rows_say_more(snapshot: Snapshot) -> None:
    head, row, *_ = text_of(gpu_lines(snapshot, 200, 9))
    for word in ("MEM BW", "LIMIT", "POWER", "LAST 10 MIN", "CLOCK", "THROTTLED BY", "HEALTH", "PCIE"):
        assert word in head
    assert "NVLINK" not in head  # no GPU of this machine has it
    for word in ("1980 MHz", "↓1.2G ↑400M", "612/700W", "P0"):
        assert word in row
    assert "hardware therm" in text_of(gpu_lines(snapshot, 200, 9))[4]
    assert "1000 me 40 GiB" in text_of(gpu_lines(snapshot, 240, 9))[1]


def test_sixteen_gpus_stand_in_two_columns_at_80_by_24(filler: Filler, workspace: Workspace) -> None:
    filler.agent()
    filler.gpus(16)
    for index in range(16):
        filler.sample(index, utilization=50.0, memory_gib=10.0)
    lines = gpu_lines(read(workspace), 80, 10)
    assert widths(lines) == {80}
    text = text_of(lines)
    assert len(text) == 9
    assert text[1].split()[0] == "0" and " 8  50" in text[1]


def test_more_gpus_than_lines_says_so(filler: Filler, workspace: Workspace) -> None:
    filler.agent()
    filler.gpus(16)
    lines = text_of(gpu_lines(read(workspace), 60, 8))
    assert len(lines) == 8
    assert lines[-1] == "  … 10 more GPUs; a shows all together"


def test_no_driver_is_said_plainly(filler: Filler, workspace: Workspace) -> None:
    filler.agent(problem="No NVIDIA driver found (libnvidia-ml.so.1 is missing).")
    assert text_of(gpu_lines(read(workspace), 80, 5)) == [
        "  No NVIDIA driver found (libnvidia-ml.so.1 is missing). `gputui --demo`",
        "  simulates eight GPUs.",
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
    assert text_of(notice_lines(later, None, 80)) == [
        " ▲ driver silent for 14 s, last sample 03:12:44; the values shown are of then"
    ]


def test_an_agent_that_stopped_is_not_blamed_on_the_driver(filler: Filler, workspace: Workspace) -> None:
    filler.overnight()
    assert "no news from the agent for 1 min" in text_of(notice_lines(read(workspace, now=NOW + 60), None, 100))[0]
    told = notice_lines(read(workspace, now=NOW + 60), "The agent is gone; starting it again…", 80)
    assert text_of(told) == [" ▲ The agent is gone; starting it again…"]


# --- strips


def test_all_gpus_in_one_line(snapshot: Snapshot) -> None:
    text = text_of([aggregate_line(snapshot, 80)])[0]
    assert text.startswith(" 8 GPUs ✗1  util 55% ")
    assert text.endswith("mem 347/560 GiB  2.9/4.9 kW  hottest ▲GPU 3 88°C")


def test_totals_leave_out_what_nobody_knows() -> None:
    assert gpu_totals([]).power_watts is None and gpu_totals([]).utilization_percent is None


def test_the_trends_fill_their_place(snapshot: Snapshot) -> None:
    for width, charts in ((80, 2), (160, 3)):
        lines = aggregate_charts(snapshot, width, 9)
        assert len(lines) == 9 and widths(lines) == {width}
        [head] = text_of([aggregate_heads(snapshot, width)])
        assert head.count("utilisation") == 1
        assert ("hottest" in head) == (charts == 3)


def test_charts_and_the_line_above_them_tell_the_same_figures(snapshot: Snapshot) -> None:
    total = gpu_totals(snapshot.gpus)
    assert total.power_watts == sum(gpu.power_watts or 0.0 for gpu in snapshot.gpus if gpu.state == "ok")
    [head] = text_of([aggregate_heads(snapshot, 160)])
    [line] = text_of([aggregate_line(snapshot, 160)])
    assert re.findall(r"power ([\d.]+) kW", head) == [f"{total.power_watts / 1000:.2f}"]
    assert f"  {total.power_watts / 1000:.1f}/" in line
    assert re.findall(r"utilisation (\d+)%", head) == re.findall(r"util (\d+)%", line)
    assert re.findall(r"hottest (\d+)°C", head) == re.findall(r"hottest ▲?GPU \d (\d+)°C", line)


def test_a_chart_of_power_has_one_unit() -> None:
    assert power_unit([517.0, None]) == (1.0, "W")
    assert power_unit([517.0, 2900.0]) == (1000.0, "kW")
    assert power_unit([None]) == (1.0, "W")


@pytest.mark.parametrize("events", [0, 2, 12, 40])
def test_charts_neither_come_nor_go_with_events(events: int) -> None:
    def rows(count: int) -> tuple[int, int]:
        shared = share_rows(
            35, gpus=lambda most: min(most, 9), cards=lambda most: 0, runs=7, events=count, has_gpus=True,
            is_folded=False,
        )  # fmt: skip
        return shared.trends, shared.events

    assert rows(events) == rows(0)
    assert rows(events)[0] >= 7 and rows(events)[1] >= 5


@pytest.mark.parametrize("height", range(24, 60))
def test_no_chart_goes_when_an_alert_comes(height: int) -> None:
    def trends(passing: int) -> int:
        return share_rows(
            height - passing, gpus=lambda most: min(most, 9), cards=lambda most: 0, runs=8, events=9, has_gpus=True,
            is_folded=False, passing=passing,
        ).trends  # fmt: skip

    assert bool(trends(1)) >= bool(trends(0))


def test_only_busy_gpus_have_a_card(snapshot: Snapshot) -> None:
    idle = next(gpu.uuid for gpu in snapshot.gpus if gpu.run_id is None)
    history = snapshot.gpu_history[idle]
    calm = replace(history, utilization_percent=tuple(0.0 for _ in history.utilization_percent))
    snapshot = replace(snapshot, gpu_history={**snapshot.gpu_history, idle: calm})
    busy = {gpu.uuid for gpu in busy_gpus(snapshot)}
    assert {gpu.uuid for gpu in snapshot.gpus if gpu.run_id} <= busy and idle not in busy


def test_the_demo_says_what_to_press_and_when_something_ran(snapshot: Snapshot) -> None:
    run = replace(snapshot.runs[0].run, started_at=NOW - 5 * 3600.0, ended_at=NOW - 3600.0)
    snapshot = replace(snapshot, runs=(replace(snapshot.runs[0], run=run),))
    [line] = text_of([demo_line(snapshot, 100)])
    assert line.startswith(" demo: ↵ opens a run") and line.endswith("q ends it, nothing is kept")
    assert f"t {clock(NOW - 3 * 3600.0)[:5]} looks back" in line
    assert " t " not in text_of([demo_line(replace(snapshot, runs=()), 100)])[0]
    assert widths([demo_line(snapshot, 40)]) == {40}


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
    assert re.search(r"cpu 34% [▁▂▃▄▅▆▇█]+  ram 88/256 GiB [▁▂▃▄▅▆▇█]+  ", wide)


# --- runs and events


def test_the_runs_table_at_80_columns(snapshot: Snapshot) -> None:
    lines = runs_lines(snapshot.runs, RunsState("vit-b16-1"), RowContext.of(snapshot, {}), 80, 5)
    assert widths(lines) == {80}
    text = text_of(lines)
    assert text[0] == " RUNS ─────────── STATE ───── PROGRESS ─────────── STEP ─── LOSS  ETA ──────────"
    assert text[1].startswith("▸● vit-b16-1      running ↻2 ") and "10%  9 440/90 000    1.9" in text[1]
    assert text[1].endswith("6 h 43 min")
    assert text[2].startswith(" ● gpt2-124m-1    running ") and "68%   4 120/6 000    1.9" in text[2]
    assert text[3] == " ◌ lr-sweep-3     queued       #1 · waits for 2 GPUs, first in line"
    assert text[4].startswith(" ✗ resnet50-2     failed ") and "           12  1 h ago · a Python exc" in text[4]


@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        (1.9421, "1.942"),
        (0.012345, "0.01235"),
        (0.004332, "0.00433"),
        (0.00043, "4.3e-4"),
        (123456.0, "123456"),
        (0.2052, "0.205"),
        (3.0, "3.000"),
        (0.0, "0"),
    ],
)
def test_a_loss_is_never_cut(snapshot: Snapshot, loss: float, shown: str) -> None:
    row = replace(snapshot.runs[0], progress=replace(snapshot.runs[0].progress, loss=loss))
    line = text_of(runs_lines([row], RunsState(), RowContext.of(snapshot, {}), 80, 2))[1]
    assert f" {shown}  6 h" in line and "…" not in line


def test_a_narrow_table_keeps_what_matters(snapshot: Snapshot) -> None:
    lines = runs_lines(snapshot.runs, RunsState(), RowContext.of(snapshot, {}), 60, 5)
    assert widths(lines) == {60}
    assert all(word in text_of(lines)[1] for word in ("vit-b16-1", "running", "9 440"))


def test_the_filter_needs_every_word(snapshot: Snapshot) -> None:
    assert [row.run.run_id for row in matching(snapshot.runs, "running vit")] == ["vit-b16-1"]
    assert [row.run.run_id for row in matching(snapshot.runs, "KeyError")] == ["resnet50-2"]
    assert matching(snapshot.runs, "nothing like it") == []
    assert "No run matches" in text_of(runs_lines([], RunsState(None, 0, "x"), RowContext(NOW), 80, 3))[1]
    assert "Press n" in text_of(runs_lines([], RunsState(), RowContext(NOW), 80, 3))[1]


def test_events_end_with_the_newest(snapshot: Snapshot) -> None:
    assert text_of(events_lines(snapshot.events, NOW, 80, 3)) == [
        " EVENTS " + "─" * 72,
        " 03:02:58    vit-b16-1  training again after 47 s, 110 steps redone",
        " 03:12:14    lr-sweep-3  queued behind 1 run",
    ]


def test_what_comes_from_outside_cannot_drive_the_terminal(filler: Filler, workspace: Workspace) -> None:
    filler.overnight()
    filler.event("evil \x1b]0;title\x07 \u202e text", subject="x\x1b[31m")
    filler.processes(4, {"pid": 1, "user": "m\x1b[2J", "command": "a\nb", "memory_bytes": 2**33})
    seen = read(workspace)
    lines = [*events_lines(seen.events, NOW, 120, 9), *gpu_lines(seen, 200, 9)]
    assert not any(char in text for line in text_of(lines) for text in [line] for char in "\x1b\x07\n\u202e")
    assert widths(lines) == {120, 200}


# --- layout


@pytest.mark.parametrize("height", range(2, 60))
@pytest.mark.parametrize(("gpus", "runs", "events"), [(8, 4, 3), (0, 0, 0), (16, 40, 50), (1, 1, 0)])
def test_the_lines_are_shared_out_without_rest(height: int, gpus: int, runs: int, events: int) -> None:
    for is_folded in (False, True):
        rows = share_rows(
            height,
            gpus=lambda most: min(most, gpus + 1 if gpus else 2),
            cards=lambda most: 12 if most >= 12 else 0,
            runs=runs,
            events=events,
            has_gpus=gpus > 0,
            is_folded=is_folded,
        )
        assert sum(rows) == height
        assert min(rows) >= 0
        if height >= 16:
            assert rows.runs >= 2 and rows.events >= 2


@pytest.mark.parametrize(("height", "cards"), [(36, 0), (60, 12)])
def test_folded_the_cards_get_what_events_can_spare(height: int, cards: int) -> None:
    rows = share_rows(
        height, gpus=lambda most: min(most, 9), cards=lambda most: 12 if most >= 12 else 0, runs=7, events=2,
        has_gpus=True, is_folded=True,
    )  # fmt: skip
    assert rows.gpus == 0 and rows.trends >= 7 and rows.events >= 5
    assert rows.cards == cards


def test_small_helpers() -> None:
    assert wrap("one two three", 7) == ["one two", "three"]
    assert wrap("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert wrap("", 5) == []
    assert wrap("at step 14 310 of 20", 13) == ["at step", "14 310 of 20"]
    assert text_of([between([("left", "text")], [("right", "text")], 12)]) == ["left   right"]
    assert text_of([fitting([[("aaa", "text")], [("bbbbbbb", "text")], [("c", "text")]], 5)]) == ["aaac"]
    assert text_of([rule("T", 12, "note")]) == [" T ─────────"]
    assert text_of([rule("T", 20, "note")]) == [" T ────────── note ─"]


def test_an_empty_machine_is_calm(workspace: Workspace) -> None:
    empty = Snapshot(NOW)
    assert text_of(gpu_lines(empty, 80, 3)) == ["  Waiting for the first sample…"]
    assert notice_lines(empty, None, 80) == []
    assert text_of(notice_lines(replace(empty, trouble="It is broken."), None, 80)) == [" ▲ It is broken."]


@pytest.mark.parametrize(
    ("ago", "shown"),
    [
        (0, "03:12:44 "),
        (3 * 3600, "00:12:44 "),
        (4 * 3600, "Fri 23:12"),
        (86_400, "Fri 03:12"),
        (5 * 86_400, "Mon 03:12"),
        (6 * 86_400, "15 Nov   "),
    ],
)
def test_a_moment_in_nine_cells_tells_the_hour_as_long_as_the_day_is_clear(ago: float, shown: str) -> None:
    assert moment(NOW - ago, NOW) == shown


@pytest.mark.parametrize(
    ("step", "total", "shown"),
    [(3_060, 8_000, "3 060/8 000"), (49_026, 120_000, "49 026/120k"), (12_345_678, 99_000_000, "12 345 678")],
)
def test_steps_are_never_cut(overnight: None, workspace: Workspace, step: int, total: int, shown: str) -> None:
    snapshot = read(workspace)
    row = snapshot.runs[0]
    row = replace(row, progress=replace(row.progress, step=step, total_steps=total))
    line = text_of(runs_lines([row], RunsState(), RowContext.of(snapshot, {}), 120, 2))[1]
    assert row.run.state == "running" and f" {shown} " in line
