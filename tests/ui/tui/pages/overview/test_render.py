"""The lines of the panes, as text."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.metrics.progress import Progress
from gputui.store.events import EventView
from gputui.store.rollups import HostHistory
from gputui.store.run_states import RunState
from gputui.ui.tui.layout.lists import filter_rows
from gputui.ui.tui.layout.strips import gpu_totals, head_line, host_figures, notice_lines
from gputui.ui.tui.pages.overview.areas import AreaNeeds, Rows, share_rows
from gputui.ui.tui.pages.overview.charts import GpuCharts
from gputui.ui.tui.pages.overview.events import event_rows, events_panel
from gputui.ui.tui.pages.overview.gpus import gpu_panel
from gputui.ui.tui.pages.overview.run_order import entry_words
from gputui.ui.tui.pages.overview.runs import RunsState, runs_panel
from gputui.ui.views.snapshot import Snapshot
from gputui.ui.views.words import dated_clock
from tests.homes import NOW, Home
from tests.stories import curve, overnight
from tests.texts import mentions
from tests.ui.tui.screens import read, styles_of, text_of, widths


@pytest.fixture
def snapshot(home: Home) -> Snapshot:
    overnight(home)
    return read(home.workspace)


def shared(
    width: int, height: int, *, gpus: int = 8, runs: int = 7, events: int = 2, processes: int = 0, hidden: int = 0
) -> Rows:
    """The areas' shares of so many lines."""
    needs = AreaNeeds(
        lambda most: min(most, gpus + 3 if gpus else 3),
        runs,
        processes,
        others=processes,
        hidden=hidden,
        events=events,
        has_charts=gpus > 0,
    )
    return share_rows(width, height, needs)


# --- GPUs


def test_gpus_are_seen_on_the_smallest_screens(snapshot: Snapshot) -> None:
    lines = gpu_panel(snapshot, 50, 7)
    assert widths(lines) == {50}
    assert [line.split()[0] for line in text_of(lines)[2:6]] == ["0", "1", "2", "3"]
    assert [line[26:].split()[0] for line in text_of(lines)[2:6]] == ["4", "5", "6", "7"]
    assert "1–3 of 8" in text_of(gpu_panel(snapshot, 40, 6))[0]


def test_unknown_values_are_dashes_and_never_zero(home: Home, workspace: Workspace) -> None:
    home.agent()
    home.gpus(1)
    home.sample(0, utilization=None, memory_gib=None, temperature=None, power=None, throttle=None)
    assert text_of(gpu_panel(read(workspace), 80, 5))[2].split() == ["0", "–", "–", "–", "–", "free"]


def test_stale_rows_are_dim_as_a_whole_and_the_silence_is_told(home: Home, workspace: Workspace) -> None:
    overnight(home)
    home.connection.execute("UPDATE agent SET heartbeat_at = ?", (NOW + 14,))
    later = read(workspace, now=NOW + 14)
    assert {style for _, style in gpu_panel(later, 80, 11)[2]} <= {"stale", "text"}
    [silence] = text_of(notice_lines(later, agent_notice=None, width=80))
    assert mentions(silence, " ▲ driver silent", "14 s", "03:12:44")
    home.connection.execute("UPDATE agent SET gpu_problem = 'it ended'")
    assert text_of(notice_lines(read(workspace, now=NOW + 14), agent_notice=None, width=80)) == [" ▲ it ended"]


def test_an_agent_that_stopped_is_not_blamed_on_the_driver(home: Home, workspace: Workspace) -> None:
    overnight(home)
    later = read(workspace, now=NOW + 60)
    assert mentions(text_of(notice_lines(later, agent_notice=None, width=100))[0], "agent", "1 min")
    assert text_of(notice_lines(later, "The agent is gone", 80)) == [" ▲ The agent is gone"]


# --- the charts of GPUs


def test_each_gpu_has_a_chart_with_its_values_in_the_colours_of_its_curves(snapshot: Snapshot) -> None:
    charts = GpuCharts()
    lines = charts.lines(snapshot, 200, 10)
    heading = text_of(lines)[0]
    assert widths(lines) == {200}
    assert len(lines) == 10
    assert heading.count("╭") == 9
    assert text_of(lines)[-1].count(" 10 min ") == 9
    gpu = snapshot.gpus[0]
    assert f"0 {gpu.utilization_percent:.0f}% 71G {gpu.temperature_celsius:.0f}° " in heading
    plot = [span for line in lines[1:-1] for span in line if "│" not in span[0]]
    assert styles_of(lines[0], "71G") <= {style for text, style in plot if text.strip()}
    assert "10 min" not in text_of(charts.lines(snapshot, 120, 7))[-1], "no room beside the frame"
    assert "°" not in text_of(charts.lines(snapshot, 140, 7))[0], "all charts or none"


def test_charts_are_in_rows_of_equally_many_and_those_without_room_are_left_out(snapshot: Snapshot) -> None:
    charts = GpuCharts()
    two_rows = text_of(charts.lines(snapshot, 80, 8))
    assert [line.count("╭") for line in two_rows] == [4, 0, 0, 0, 4, 0, 0, 0]
    low = charts.lines(snapshot, 30, 4)
    assert widths(low) == {30}
    assert len(low) == 4
    assert "╭" not in "".join(text_of(low))
    assert [line.split()[0] for line in text_of(low)[::2]] == ["0", "2"]


def test_the_first_chart_is_of_all_gpus_where_it_takes_no_room_from_the_others(snapshot: Snapshot) -> None:
    charts = GpuCharts()
    total = gpu_totals(snapshot.gpus)
    assert total.memory_used_bytes is not None
    heading = text_of(charts.lines(snapshot, 200, 10))[0]
    gigabytes = total.memory_used_bytes / 2**30
    assert f" all {total.utilization_percent:.0f}% {gigabytes:.0f}G {total.hottest_celsius:.0f}° " in heading
    assert " all " not in text_of(charts.lines(snapshot, 160, 10))[0], "the headings would be shorter"
    assert " all " not in text_of(charts.lines(snapshot, 140, 7))[0], "its heading has no room"
    assert " all " not in text_of(charts.lines(snapshot, 120, 7))[0]
    assert " all " not in text_of(charts.lines(replace(snapshot, gpus=snapshot.gpus[:1]), 200, 10))[0]


@pytest.mark.parametrize(("gigabytes", "style"), [(76, "memory.2"), (78, "warn")])
def test_full_memory_has_one_colour_in_table_and_chart(snapshot: Snapshot, gigabytes: int, style: str) -> None:
    used = gigabytes * 2**30
    gpus = tuple(replace(gpu, memory_used_bytes=used, memory_total_bytes=80 * 2**30) for gpu in snapshot.gpus)
    full = replace(snapshot, gpus=gpus)
    assert styles_of(gpu_panel(full, 120, 11)[2], f"{gigabytes}") == {style}
    assert styles_of(GpuCharts().lines(full, 120, 7)[0], f" {gigabytes}G") == {style}


def test_every_chart_has_a_heading_with_its_name(snapshot: Snapshot) -> None:
    gpu = snapshot.gpus[0]
    busy = replace(gpu, utilization_percent=100.0, memory_used_bytes=140.6 * 2**30, memory_total_bytes=141.0 * 2**30)
    for width, number, memory in itertools.product(range(100, 201), range(1, 17), (0.4, 140.6)):
        used = replace(busy, memory_used_bytes=memory * 2**30)
        gpus = tuple(replace(used, uuid=f"GPU-{index}", index=index) for index in range(number))
        lines = GpuCharts().lines(replace(snapshot, gpus=gpus, gpu_history={}), width, 14)
        assert widths(lines) == {width}
        headings = [part for line in text_of(lines) if "╭" in line for part in line.split("╭")[1:]]
        names = [heading.split()[0] for heading in headings]
        assert [name for name in names if name != "all"] == [str(index) for index in range(number)], (width, number)
        counts = {len(heading.rstrip("╮ ─").split()) for heading in headings}
        assert len(counts) == 1, "all have the same figures"


def test_curves_are_drawn_again_only_when_a_point_was_added(snapshot: Snapshot) -> None:
    charts = GpuCharts()
    now_idle = tuple(replace(gpu, utilization_percent=3.0) for gpu in snapshot.gpus)
    first = charts.lines(snapshot, 120, 7)
    later = charts.lines(replace(snapshot, gpus=now_idle), 120, 7)
    assert first[1:] == later[1:]
    assert " 3% " in text_of(later)[0]
    history = {
        uuid: replace(gpu_history, utilization_percent=(5.0,) * 60)
        for uuid, gpu_history in snapshot.gpu_history.items()
    }
    assert charts.lines(replace(snapshot, gpu_history=history), 120, 7)[1:] != first[1:]


# --- strips


def test_head_and_host(snapshot: Snapshot) -> None:
    heads = {
        width: text_of([head_line(snapshot, width, "ws-kepler", demo=False, readonly=False)])[0] for width in (80, 120)
    }
    assert heads[80].startswith(" gputui  ws-kepler · 8 × H100 80GB · CUDA 13.0")
    assert "1 queued  2 running  03:12:44" in heads[80]
    assert " · driver 580.95.05 · CUDA 13.0" in heads[120]
    assert "simulated" in text_of([head_line(snapshot, 80, "x", demo=True, readonly=True)])[0]

    def host(snapshot: Snapshot, width: int) -> str:
        return "  ".join("".join(text for text, _ in figure) for figure in host_figures(snapshot, width))

    assert host(snapshot, 80).startswith("cpu 34%  ram 88/256 GiB  disk 71%  shm 4%  read 1.2GB/s")
    assert host(Snapshot(NOW), 80) == "no sample yet"
    busy = HostHistory((None, 0.0, 50.0, 100.0), (None, 0.0, 128.0 * 2**30, 256.0 * 2**30), *[(None,) * 4] * 4)
    assert "cpu 34% ▁▄▆  ram 88/256 GiB ▁▄▆" in host(replace(snapshot, host_history=busy), 160)


def test_models_are_short_and_counted(snapshot: Snapshot) -> None:
    names = {
        "NVIDIA H100 80GB HBM3": "H100 80GB", "NVIDIA A100-SXM4-40GB": "A100-SXM4-40GB", "Tesla V100-PCIE-16GB":
        "V100-PCIE-16GB", "NVIDIA GeForce RTX 4090": "RTX 4090", "NVIDIA H100 80GB HBM3 (simulated)": "H100 80GB",
    }  # fmt: skip
    for name, short in names.items():
        gpus = tuple(replace(gpu, name=name) for gpu in snapshot.gpus[:2])
        [head] = text_of([head_line(replace(snapshot, gpus=gpus), 120, "x", demo=False, readonly=False)])
        assert f" 2 × {short} · " in head


# --- runs and events


def test_losses_and_steps_are_never_cut(snapshot: Snapshot) -> None:
    row = snapshot.runs[0]

    def line(width: int, **progress: float) -> str:
        changed = replace(row, progress=replace(row.progress, **progress))
        return text_of(runs_panel([changed], RunsState(), snapshot, width, 2))[1]

    losses = {1.9421: "1.942", 0.012345: "0.01235", 0.004332: "0.00433", 0.00043: "0.00043", 4.3e-5: "4.3e-5",
              123456.0: "123456", 0.2052: "0.205", 3.0: "3.000", 0.0: "0"}  # fmt: skip
    for loss, text in losses.items():
        assert f" {text}  6 h" in line(80, loss=loss), loss
        assert "…" not in line(80, loss=loss), loss
    for step, total, text in ((3_060, 8_000, "3 060/8 000"), (49_026, 120_000, "49 026/120k"),
                               (12_345_678, 99_000_000, "12 345 678")):  # fmt: skip
        assert f" {text} " in line(120, step=step, total_steps=total), step


@pytest.mark.parametrize(
    ("state", "step", "share"),
    [
        ("succeeded", 599, 1.0),
        ("succeeded", None, None),
        ("failed", 300, 0.5),
        ("running", 600, 1.0),
        ("running", 900, 1.0),
    ],
)
def test_a_run_that_succeeded_is_done(snapshot: Snapshot, state: str, step: int | None, share: float | None) -> None:
    row = snapshot.runs[0]
    row = replace(row, run=replace(row.run, state=RunState(state)), progress=Progress(step=step, total_steps=600))
    assert row.share_done == share
    percent = "100%" if share == 1.0 else "50%" if share else "%"
    line = text_of(runs_panel([row], RunsState(), snapshot, 160, 2))[1]
    # A failed run uses the room of its progress for the reason.
    assert (percent in line) is (share is not None and state != "failed")
    assert ("step 300 · " in line) is (state == "failed")


@pytest.mark.parametrize("width", [50, 60, 80, 120, 200])
def test_a_recovered_run_says_so_in_every_width_however_it_ended(home: Home, workspace: Workspace, width: int) -> None:
    for state in ("succeeded", "failed", "stopped"):
        home.run(state, state, attempt=2, ended_ago=60)
        home.attempt(state, 2, state, ended_ago=60, last_step=300)
    home.run("first-1", "succeeded", ended_ago=60)
    snapshot = read(workspace)
    rows = text_of(runs_panel(snapshot.runs, RunsState(), snapshot, width, 9))
    assert [state for state in ("succeeded", "failed", "stopped") if any(f" {state} ↻1" in row for row in rows)] == [
        "succeeded", "failed", "stopped",
    ]  # fmt: skip
    assert "↻" not in next(row for row in rows if "first-1" in row)


def test_the_filter_needs_every_word(snapshot: Snapshot) -> None:
    assert [row.run.run_id for row in filter_rows(snapshot.runs, "running vit", entry_words)] == ["vit-b16-1"]
    assert [row.run.run_id for row in filter_rows(snapshot.runs, "KeyError", entry_words)] == ["resnet50-2"]
    assert filter_rows(snapshot.runs, "nothing like it", entry_words) == []
    assert (
        "No run matches"
        in text_of(runs_panel([], RunsState(cursor=None, top=0, filter_text="x"), Snapshot(NOW), 80, 3))[1]
    )
    assert "Press n" in text_of(runs_panel([], RunsState(), Snapshot(NOW), 80, 3))[1]


def test_no_column_of_runs_is_wider_than_its_cells_and_which_gpus_is_never_cut(
    home: Home, workspace: Workspace
) -> None:
    home.agent()
    home.gpus(8)
    home.run("a-1", gpus=(0, 1, 3, 5, 7))
    curve(home, "a-1", 1, 0, 40)
    home.run("b-1", "failed", ended_ago=60.0, reason="it broke")
    for width in (120, 160, 200):
        snapshot = read(workspace)
        heading, training, failed = text_of(runs_panel(snapshot.runs, RunsState(), snapshot, width, 3))
        assert " 0–1, 3, 5, 7" in training
        assert "LOST" not in heading, "no failure cost anything"
        if "PROFILE" in heading:
            assert heading.index("PROFILE") - heading.index("TIME") == len("TIME  ")
        assert failed.index("1 min ago") == heading.index("PROGRESS")


@pytest.mark.parametrize(("width", "number", "part"), [(60, 9, "1–3 of 9"), (80, 9, "1–3 of 9"), (80, 400, "1–3/400"),
                                                        (120, 40, "1–3 of 40")])  # fmt: skip
def test_the_shown_part_of_a_long_list_covers_no_heading(
    snapshot: Snapshot, width: int, number: int, part: str
) -> None:
    rows = list(itertools.islice(itertools.cycle(snapshot.runs), number))
    [heading, *_] = text_of(runs_panel(rows, RunsState(), snapshot, width, 4))
    assert heading.startswith((f" RUNS {part} ─", f" RUNS {part}  "))
    heads = heading.split(part)[1].replace("─", " ").split()
    assert heads[0] == "STATE"
    assert heads[-1] == "ETA"


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_columns_stay_where_they_are_as_the_state_of_a_run_changes(snapshot: Snapshot, width: int) -> None:
    row = snapshot.runs[0]
    headings = set()
    for state, attempt in itertools.product(("starting", "running", "recovering", "stopping"), (1, 2)):
        changed = replace(row, run=replace(row.run, state=RunState(state), attempt=attempt))
        heading = text_of(runs_panel([changed], RunsState(), snapshot, width, 2))[0]
        headings.add((heading.index("STATE"), heading.index("STEP")))
    assert len(headings) == 1


def test_runs_without_gpus_have_no_column_of_gpus(home: Home, workspace: Workspace) -> None:
    home.agent()
    home.gpus(2)
    home.run("cpu-1", gpus=())
    curve(home, "cpu-1", 1, 0, 40)
    for width in (120, 200):
        snapshot = read(workspace)
        assert " GPUS " not in text_of(runs_panel(snapshot.runs, RunsState(), snapshot, width, 2))[0]


# --- layout


def test_the_lines_are_shared_out_without_rest() -> None:
    wrong = []
    areas = [(8, 4, 3, 0), (8, 0, 3, 5), (0, 0, 0, 0), (16, 40, 50, 16), (1, 1, 0, 1)]
    for width, height, (gpus, runs, events, processes) in itertools.product((50, 80, 120, 200), range(4, 70), areas):
        rows = shared(width, height, gpus=gpus, runs=runs, events=events, processes=processes)
        used = rows.gpus + rows.runs + rows.charts + rows.events + (0 if rows.is_beside else rows.processes)
        if used != height or min(rows) < 0 or (height >= 20 and min(rows.runs, rows.events) < 2):
            wrong.append((width, height, gpus, runs, events, rows))
    assert wrong == []


def test_no_row_is_blank_while_something_is_hidden() -> None:
    assert shared(80, 21) == Rows(11, 7, events=3)
    assert shared(120, 34, runs=8, events=40) == Rows(11, 10, charts=5, events=8)
    assert shared(120, 34, runs=0, processes=8, events=3) == Rows(11, 3, charts=10, processes=5, events=5)
    assert shared(200, 48, runs=8, processes=5, events=40) == Rows(
        11, 10, charts=11, processes=16, events=16, is_beside=True
    )
    # A process of no run is in sight where rows are free for it and the charts, or if no row of a GPU shows it.
    assert shared(120, 33, runs=0, processes=3, events=0) == Rows(11, 3, charts=11, processes=5, events=3)
    assert shared(120, 48, runs=4, processes=3, events=40) == Rows(11, 6, charts=11, processes=6, events=14)
    assert shared(120, 33, runs=7, processes=3, events=40) == Rows(11, 9, charts=5, events=8)
    assert shared(120, 33, runs=7, processes=3, events=40, hidden=1) == Rows(11, 9, processes=5, events=8)
    # Runs never begin below the middle, and an alert takes no chart.
    assert all(shared(width, height).gpus <= height // 2 + 1 for width in (80, 200) for height in range(20, 60))
    assert share_rows(120, 32, AreaNeeds(lambda _: 11, 8, 0, others=0, hidden=0, events=40), passing=2).charts > 0


@pytest.mark.parametrize(("width", "height", "least"), [(80, 21, 2), (120, 34, 4), (140, 43, 7)])
@pytest.mark.parametrize("passing", [0, 1])
def test_events_are_in_sight_beside_many_runs_and_a_process_of_no_run(
    width: int, height: int, least: int, passing: int
) -> None:
    needs = AreaNeeds(lambda _: 11, runs=9, processes=7, others=1, hidden=0, events=40)
    rows = share_rows(width, height - passing, needs, passing=passing)
    frame = 2 if width >= 100 else 1
    assert rows.events - frame >= least
    assert bool(rows.charts) == bool(share_rows(width, height, needs).charts), "no alert takes the charts away"


def test_a_time_of_another_day_has_its_day() -> None:
    clocks = {0: "03:12:44", 3 * 3600: "00:12:44", 4 * 3600: "Fri 23:12", 86_400: "Fri 03:12",
             5 * 86_400: "Mon 03:12", 6 * 86_400: "15 Nov 03:12", 400 * 86_400: "17 Oct 2025 03:12"}  # fmt: skip
    assert {ago: dated_clock(NOW - ago, NOW) for ago in clocks} == clocks


def test_a_long_event_has_two_lines_or_keeps_its_begin_and_its_end(home: Home, workspace: Workspace) -> None:
    home.event("launched by ada", subject="gpt-1", seconds_ago=60.0)
    message = "lowered batch_size 128 → 64 and raised grad_accum 1 → 2, resuming from step_049400.safetensors"
    home.event(message, subject="gpt-1", seconds_ago=10.0)
    snapshot = read(workspace)
    whole = text_of(events_panel(snapshot, 80, 6))
    assert whole[1:] == [
        " 03:11:44   gpt-1  launched by ada",
        " 03:12:34   gpt-1  lowered batch_size 128 → 64 and raised grad_accum 1 → 2,",
        "                   resuming from step_049400.safetensors",
    ]
    assert text_of(events_panel(snapshot, 80, 3))[1:] == [
        " 03:11:44    gpt-1  launched by ada",
        " 03:12:34    gpt-1  lowered batch_size 128 → 64 an… from step_049400.safetensors",
    ]
    assert [row.event.event_id for row in event_rows(snapshot, 80, 6) if row.event is not None] == [1, 2, 2]
    for name in ("launched", "stopped", "resumed"):
        home.event(name, subject="gpt-1", seconds_ago=1.0)
    top = text_of(events_panel(read(workspace), 80, 5))[1]
    assert top == " 03:12:34   gpt-1  lowered batch_size 128 → 64 an…g from step_049400.safetensors", "no end alone"


def test_events_name_each_day_once() -> None:
    events = [EventView(number, NOW - ago, "info", None, None, None, None, None, "") for number, ago in
              enumerate((200_000.0, 100_000.0, 98_000.0, 60.0, 0.0))]  # fmt: skip
    days = ("Wed 18 Nov 2026", "Thu 19 Nov 2026", "Sat 21 Nov 2026")

    def rows(height: int, cursor: int | None = None) -> list[object]:
        rows = event_rows(Snapshot(NOW, events=tuple(events)), 80, height, cursor)
        return [row.text if row.event is None else row.event.event_id for row in rows]

    assert rows(9) == [days[0], 0, days[1], 1, 2, days[2], 3, 4]
    assert rows(6) == [days[1], 2, days[2], 3, 4]
    assert rows(3) == [3, 4]
    assert rows(4, cursor=0) == [days[0], 0, days[1]]
    # In few lines each event has its day.
    snapshot = replace(Snapshot(NOW), events=tuple(events))
    tops = [text_of(events_panel(snapshot, 40, *view))[1] for view in ((6,), (2, 2), (3, 3))]
    assert [top[1:10] for top in tops] == [days[1][:9], "Thu 23:59", "03:11:44 "]
