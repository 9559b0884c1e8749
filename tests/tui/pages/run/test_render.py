"""The sections of a run's page, as text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.charts.cells import cell_width
from gputui.charts.chart import Line
from gputui.charts.envelope import Bin
from gputui.config import Workspace
from gputui.curves.model import (
    ChartData,
    ChartMarker,
    ChartRequest,
    Frame,
    HardwareCurve,
    MetricCurve,
    RankCurve,
    RankCurves,
)
from gputui.store.database import open_reader
from gputui.store.events import add_event
from gputui.store.metrics import queries
from gputui.tui.data.progress import rank_rows
from gputui.tui.data.reader import SnapshotReader
from gputui.tui.data.snapshot import Checkpoint, CheckpointList, Interest, Moment, RankRow, RunPage, Snapshot
from gputui.tui.layout.chart_settings import ChartSettings
from gputui.tui.layout.charts import (
    ChartLook,
    extent_of,
    grid_lines,
    markers_near,
    next_marker,
    panel_lines,
    rank_curves,
)
from gputui.tui.layout.panels import HARDWARE, Panel, Panels, panels, places
from gputui.tui.pages.run.chart_files import chart_file, write
from gputui.tui.pages.run.charts_head import chart_head, filter_head
from gputui.tui.pages.run.checkpoints import checkpoint_lines, checkpoint_note
from gputui.tui.pages.run.head import from_top, gpu_words, run_head
from gputui.tui.pages.run.parameters import parameter_lines
from gputui.tui.pages.run.ranks import ranks_lines
from gputui.tui.pages.run.sections import Sections, section_lines, side_heights
from gputui.tui.pages.run.timeline import cost_lines, timeline_lines
from gputui.tui.widgets.line_edit import LineEdit
from tests.tui.filling import NOW, Filler


def text_of(lines: Iterable[Line]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def widths(lines: Iterable[Line]) -> set[int]:
    return {sum(cell_width(text) for text, _ in line) for line in lines}


def styles(lines: Iterable[Line], text: str) -> set[str]:
    return {style for line in lines for piece, style in line if text in piece}


@pytest.fixture
def snapshot(filler: Filler, workspace: Workspace) -> Snapshot:
    filler.overnight()
    with closing(open_reader(workspace.database)) as connection:
        return SnapshotReader(workspace).read(connection, NOW, Interest("vit-b16-1"))


@pytest.fixture
def page(snapshot: Snapshot) -> RunPage:
    assert snapshot.page is not None
    return snapshot.page


# --- head, parameters, ranks


def test_the_head_of_a_page_keeps_whole_words(page: RunPage, snapshot: Snapshot) -> None:
    line = run_head(page, snapshot.gpus, NOW, 80)
    assert widths([line]) == {80}
    assert text_of([line]) == [" vit-b16-1 · ● running ↻2 · step 9 440/90k · 6 h 43 min left · GPU 6   03:12:44"]
    [wider] = text_of([run_head(page, snapshot.gpus, NOW, 120)])
    assert "step 9 440/90 000 · 6 h 43 min left · loss 1.942 · GPU 6 ·" in wider


def test_parameters_show_what_recovery_changed_and_why(page: RunPage) -> None:
    text = text_of(parameter_lines(page, NOW, 80))
    assert text[1].split() == ["batch_size", "512", "384", "←", "cuda", "oom", "01:41:05"]
    assert text[2].split()[:3] == ["grad_accum", "1", "2"]
    assert text[3].split() == ["lr", "0.001", "0.001"]


def test_slow_ranks_are_named() -> None:
    ranks = {n: RankRow(n, 100, NOW, 0.3, 0.006, slowdown=1.0) for n in range(4)}
    ranks[2] = RankRow(2, 100, NOW, 0.45, 0.12, slowdown=1.5)
    text = text_of(ranks_lines(ranks, 80, 8))
    assert text[3].endswith("▲ slow, 1.5× the median")
    assert "slow" not in text[1]
    few = text_of(ranks_lines(ranks, 80, 4))
    assert any("r2" in line for line in few) and few[-1] == "  … 2 more, none slower"
    assert text_of(ranks_lines({}, 80, 4)) == ["  No rank has reported yet."]


def test_the_rank_that_waits_least_for_others_is_the_slow_one() -> None:
    from gputui.store.metrics.queries import RankLine

    def line(rank: int, own: float) -> RankLine:
        return RankLine(rank, 10, NOW, {"step_time": 1.0, "comm_time": 1.0 - own})

    rows = rank_rows([line(0, 0.5), line(1, 0.5), line(2, 0.9)])
    assert rows[2].is_slow and not rows[0].is_slow
    work = [text.split()[2:4] for text in text_of(ranks_lines(rows, 80, 8))[1:]]
    assert work == [["500", "ms"], ["500", "ms"], ["900", "ms"]], "the row shows what it is called slow by"


def test_different_steps_of_ranks_are_not_compared() -> None:
    from gputui.store.metrics.queries import RankLine

    lines = [
        RankLine(0, 10, NOW, {"step_time": 0.03, "comm_time": 0.0}),
        RankLine(1, 11, NOW, {"step_time": 0.05, "comm_time": 0.0}),
    ]
    assert not any(row.is_slow for row in rank_rows(lines).values())
    # Over the steps that both have written rank 0 is the slow one, whatever the newest line of rank 1 says.
    means = {0: {"step_time": 0.05, "comm_time": 0.0}, 1: {"step_time": 0.03, "comm_time": 0.0}}
    rows = rank_rows(lines, means)
    assert rows[0].is_slow and not rows[1].is_slow and rows[1].step == 11


def test_ranks_are_compared_over_the_newest_steps_that_all_have_written(filler: Filler, workspace: Workspace) -> None:
    filler.run("vit-1")
    filler.attempt("vit-1", 1)
    lines = [
        {"step": step, "rank": rank, "step_time": 0.1, "comm_time": 0.02 if rank == 1 else 0.06}
        for step in range(40)
        for rank in (0, 1)
    ]
    # One slow step of rank 0, which its peer has not written yet.
    lines.append({"step": 40, "rank": 0, "step_time": 0.9, "comm_time": 0.0})
    filler.metrics("vit-1", 1, lines)
    with closing(open_reader(workspace.database)) as connection:
        means = queries.rank_means(connection, "vit-1", 1, 2)
        snapshot = SnapshotReader(workspace).read(connection, NOW, Interest("vit-1"))
    assert means[0]["comm_time"] == pytest.approx(0.06) and means[1]["step_time"] == pytest.approx(0.1)
    assert snapshot.page is not None
    ranks = snapshot.page.progress.ranks
    assert ranks[1].is_slow and not ranks[0].is_slow and ranks[0].step == 40


# --- the timeline and what it cost


def test_the_timeline_tells_the_story_in_order(page: RunPage, snapshot: Snapshot) -> None:
    assert text_of(timeline_lines(page, snapshot.gpus, NOW, 80)) == [
        " 00:09:22 queued",
        " 00:09:24 started on GPU 6–7",
        " 01:41:04 attempt 1 ended with code 1 after 1 h 32 min at step 4 310",
        " 01:41:04 CUDA ran out of memory on rank 1 at step 4310",
        "          → batch_size 512 → 384 and grad_accum 1 → 2, the effective batch",
        "            stays within 2 %",
        "          cost 311 steps, 1 h 2 min and 2.1 GPU-hours",
        " 01:41:54 attempt 2 from step 4 000 on GPU 6–7",
        " 03:02:11 attempt 2 ended by signal 9 after 1 h 20 min at step 8 110",
        " 03:02:11 GPU 7 was lost (XID 79) at step 8110",
        "          → left GPU 7 out and went on with one rank, for the other GPU is",
        "            healthy",
        "          cost 111 steps, 3 min 57 s and 0.076 GPU-hours",
        " 03:02:58 attempt 3 from step 8 000 on GPU 6",
    ]
    there = replace(page, run=replace(page.run, target="lab"), attempts=page.attempts[:1])
    assert " 00:09:24 started on lab" in text_of(timeline_lines(there, snapshot.gpus, NOW, 80))
    assert text_of(cost_lines(page, 80)) == [" 2 incidents cost 422 steps, 1 h 6 min and 2.1 GPU-hours"]
    assert cost_lines(replace(page, costs={}), 80) == []
    evidence = text_of(timeline_lines(page, snapshot.gpus, NOW, 80, with_evidence=True))
    assert "          · XID 79: GPU has fallen off the bus" in evidence


def test_the_timeline_is_read_from_its_end_and_scrolls(page: RunPage, snapshot: Snapshot) -> None:
    end = text_of(section_lines(Sections(page, snapshot.gpus, NOW, "charts"), "story", 80, 6, is_titled=True))
    assert end[0].startswith(" TIMELINE") and end[1] == "  … 13 lines before"  # whole entries only
    assert end[-2].endswith("attempt 3 from step 8 000 on GPU 6") and "2 incidents cost" in end[-1]
    story = Sections(page, snapshot.gpus, NOW, "story", {"story": 3})
    scrolled = text_of(section_lines(story, "story", 80, 6, is_titled=False))
    assert scrolled[-2] == "  … 4 lines below" and "2 incidents cost" in scrolled[-1]
    top = replace(story, offsets={"story": story.most_offset("story", 80, 6)})
    assert text_of(section_lines(top, "story", 80, 6, is_titled=False))[0].endswith("queued")


def test_a_timeline_cut_at_its_top_names_the_day_of_what_is_left(page: RunPage, snapshot: Snapshot) -> None:
    def shown(now: float, height: int) -> list[str]:
        return text_of(section_lines(Sections(page, snapshot.gpus, now, "story"), "story", 80, height, is_titled=False))

    tomorrow, whole = NOW + 86_400, 40
    day = "Sat 21 Nov 2026"
    for height in range(1, whole):
        lines = shown(tomorrow, height)
        assert [line for line in lines if line.endswith(day)] == [lines[0]]
    assert shown(tomorrow, 6)[0].endswith(f" lines before · {day}") and shown(tomorrow, whole)[0] == f" {day}"
    assert shown(NOW, 6)[0].endswith(" lines before")


def test_what_a_run_resumed_from_is_harmless(page: RunPage, snapshot: Snapshot) -> None:
    attempt = replace(page.attempts[1], resumed_from="/x/a\x1b[2Jb.pt", resumed_step=None, first_step=None)
    lines = timeline_lines(replace(page, attempts=(attempt,)), snapshot.gpus, NOW, 80)
    assert any("attempt 2 from a" in line for line in text_of(lines))
    assert not any("\x1b" in line for line in text_of(lines))


def test_a_clock_that_was_set_back_tells_no_duration(page: RunPage, snapshot: Snapshot) -> None:
    began = page.attempts[0].started_at
    assert began is not None
    attempt = replace(page.attempts[0], ended_at=began - 3600)
    lines = text_of(timeline_lines(replace(page, attempts=(attempt,)), snapshot.gpus, NOW, 80))
    assert any(line.endswith(" attempt 1 ended with code 1 at step 4 310") for line in lines)


# --- checkpoints


def test_checkpoints_tell_what_is_known_of_each(page: RunPage) -> None:
    found = CheckpointList(
        (
            Checkpoint("step_9000.pt", 9000, 3 << 30, NOW - 90, True, "the CRC of each of its 9 members was checked"),
            Checkpoint("step_8500.pt", 8500, 3 << 30, NOW - 900, False, "is damaged"),
            Checkpoint("step_8000.pt", 8000, None, None),
            Checkpoint("step_7500.pt", 7500, None, None, True, "", 2, "was left by a rollback"),
        ),
        count=8,
        is_known=True,
    )
    shown = text_of(checkpoint_lines(replace(page, checkpoints=found), NOW, 80))
    assert shown[0].split()[:6] == ["step", "9", "000", "3", "GiB", "1"] and "✓ whole: the CRC" in shown[0]
    assert "✗ is damaged" in shown[1]
    assert shown[2].endswith("· not checked  ← attempt 3 went on from here") and "–" in shown[2]
    assert shown[3].endswith("✗ was left by a rollback, attempt 2")
    assert shown[4] == "  … 4 older ones"
    assert checkpoint_note(found, NOW) == "8, newest step 9 000, 1 min old"
    # The step of a file that is written over is that of the metrics at its time.
    over = CheckpointList((Checkpoint("last.pth.tar", 9000, 3 << 30, NOW - 90),), count=1, is_known=True)
    assert text_of(checkpoint_lines(replace(page, checkpoints=over), NOW, 80))[0].startswith(" last.pth.tar ~9 000 ")
    for nothing, words in (
        (None, "names no place"),
        (CheckpointList(), "Looking"),
        (CheckpointList(is_known=True), "None has been"),
        (CheckpointList(is_elsewhere=True), "on its target"),
    ):  # fmt: skip
        assert words in text_of(checkpoint_lines(replace(page, checkpoints=nothing), NOW, 80))[0]


@pytest.mark.parametrize("height", [0, 1, 4, 9, 27, 60])
@pytest.mark.parametrize("focus", ["charts", "ranks", "story", "params"])
def test_the_side_is_shared_out_without_rest(page: RunPage, snapshot: Snapshot, height: int, focus: str) -> None:
    sections = Sections(page, snapshot.gpus, NOW, focus)
    heights = side_heights(sections, 46, height)
    assert all(rows >= 0 for rows in heights.values()) and sum(heights.values()) == max(height, heights["params"])
    for name, rows in heights.items():
        lines = section_lines(sections, name, 46, rows, is_titled=True)
        assert len(lines) <= rows and widths(lines) <= {46}


def test_what_is_left_out_above_and_below_is_said() -> None:
    lines: list[Line] = [[(f"{number:<20}", "text")] for number in range(10)]
    assert text_of(from_top(lines, 0, 20, 4)) == ["0", "1", "2", "  … 7 more"]
    assert text_of(from_top(lines, 3, 20, 4)) == ["  … 4 above", "4", "5", "  … 4 more"]
    assert text_of(from_top(lines, 99, 20, 4)) == ["  … 7 above", "7", "8", "9"]
    assert from_top(lines, 0, 20, 0) == []


# --- which charts, and where


def test_pins_come_first_then_what_matters_then_the_hardware() -> None:
    names = ("epoch", "my/metric", "grad_norm", "lr", "loss", "samples_per_s")
    found = panels(names, ChartSettings(), has_gpus=True)
    keys = [panel.key for panel in found.shown]
    assert keys[:6] == ["loss", "samples_per_s", "gpu/utilization", "lr", "grad_norm", "my/metric"]
    assert keys[-1] == "epoch" and found.count == len(keys)
    assert all(not panel.key.startswith("gpu/") for panel in panels(names, ChartSettings(), has_gpus=False).shown)
    pinned = panels(names, ChartSettings(pins=("my/metric", "gone"), filter_text="l*"), has_gpus=True).shown
    assert [panel.key for panel in pinned] == ["my/metric", "loss", "lr"] and pinned[0].is_pinned
    assert next(p.colour for p in found.shown if p.key == "lr") == pinned[2].colour  # wherever it stands
    broken = panels(names, ChartSettings(filter_text="~("), has_gpus=False)
    assert broken.problem is not None and "not a regular expression" in broken.problem


@pytest.mark.parametrize("size", [(80, 20), (71, 24), (119, 35), (40, 7), (200, 48)])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("layout", ["grid", "two", "one"])
def test_charts_stand_beside_each_other_without_touching(size: tuple[int, int], count: int, layout: str) -> None:
    width, height = size
    found = places(count, width, height, layout)  # type: ignore[arg-type]
    assert len(found) >= 1 and (layout != "grid" or len(found) <= count)
    cells = set()
    for place in found:
        own = {(x, y) for x in range(place.left, place.left + place.width)
               for y in range(place.top, place.top + place.height)}  # fmt: skip
        assert not own & cells
        cells |= own
    assert all(0 <= x < width and 0 <= y < height for x, y in cells)
    assert found[0].width == width


# --- charts


def bins(*values: float, start: int = 0) -> tuple[Bin, ...]:
    found = []
    for x, value in enumerate(values, start):
        each = Bin(float(x), float(x))
        each.add(float(x), value)
        found.append(each)
    return tuple(found)


LOSS = Panel("loss", "loss", 0)
UTIL = Panel("gpu/utilization", "GPU util %", 2, "utilization")


def data_of(*curves: MetricCurve, hardware: tuple[HardwareCurve, ...] = (), markers: tuple[ChartMarker, ...] = (),
            end: float = 9.0) -> ChartData:  # fmt: skip
    request = ChartRequest(hardware=("utilization",))
    return ChartData(request, Frame("step", 0.0, end), tuple(c.name for c in curves),
                     {curve.name: curve for curve in curves}, hardware, markers)  # fmt: skip


def look_of(**changes: object) -> ChartLook:
    base = ChartLook(ChartSettings(), (0.0, 10.0), None, None, {"GPU-a": 0, "GPU-b": 1})
    return replace(base, **changes)  # type: ignore[arg-type]


def test_the_legend_tells_the_newest_value_or_that_at_the_crosshair() -> None:
    data = data_of(MetricCurve("loss", bins(*range(10)), last=9.0))
    assert " loss  9" in text_of(panel_lines(LOSS, data, look_of(), 60, 9))[0]
    tall = text_of(panel_lines(LOSS, data, look_of(), 60, 10))
    assert tall[0].strip() == "loss" and [line for line in tall if line.endswith(" 9")]  # where the curve ends
    lines = panel_lines(LOSS, data, look_of(cursor=3.2, focus="loss"), 60, 10)
    assert text_of(lines)[0].startswith("▸loss  3") and widths(lines) == {60}
    assert styles(lines, "│") >= {"cursor"}
    nan = data_of(MetricCurve("loss", bins(1.0, float("nan"), 2.0), last=2.0))
    lines = panel_lines(LOSS, nan, look_of(cursor=1.0), 60, 10)
    assert "loss  nan" in text_of(lines)[0] and "× 1 not finite" in text_of(lines)[0]


def test_smoothed_curves_keep_the_measured_ones_behind_them() -> None:
    curve = MetricCurve("loss", bins(5, 1, 5, 1), smooth=bins(5, 3, 3.5, 3), last=1.0)
    lines = panel_lines(LOSS, data_of(curve), look_of(window=(0.0, 4.0)), 60, 12)
    assert "~ 3  1" in text_of(lines)[0]
    drawn = {style for line in lines[1:-1] for text, style in line if any(0x2800 < ord(char) < 0x2900 for char in text)}
    assert drawn == {"series.0", "shadow"}


def test_what_lies_outside_of_the_window_does_not_stretch_the_axis() -> None:
    data = data_of(MetricCurve("loss", bins(1000, 2, 1, 2), last=2.0))
    assert "1k" in "\n".join(text_of(panel_lines(LOSS, data, look_of(), 60, 10)))
    zoomed = "\n".join(text_of(panel_lines(LOSS, data, look_of(window=(1.0, 3.0)), 60, 10)))
    assert "1k" not in zoomed and "1.5" in zoomed


def test_a_chart_without_values_says_why() -> None:
    data = data_of(MetricCurve("loss", problem="no epoch is known yet"))
    assert "no epoch is known yet" in "\n".join(text_of(panel_lines(LOSS, data, look_of(), 60, 10)))
    assert "reading…" in "\n".join(text_of(panel_lines(Panel("new", "new", 0), data, look_of(), 60, 10)))
    assert "not recorded then" in "\n".join(text_of(panel_lines(UTIL, data, look_of(), 60, 10)))


def test_each_gpu_has_its_curve_and_many_are_told_by_their_range() -> None:
    pair = (HardwareCurve("utilization", "GPU-b", bins(90, 91), 91.0),
            HardwareCurve("utilization", "GPU-a", bins(10, 11), 11.0))  # fmt: skip
    lines = panel_lines(UTIL, data_of(hardware=pair), look_of(), 60, 10)
    assert "● 0: 11  ■ 1: 91" in text_of(lines)[0] and "100 ┤" in "\n".join(text_of(lines))
    at = text_of(panel_lines(UTIL, data_of(hardware=pair), look_of(cursor=0.0), 60, 10))[0]
    assert "● 0: 10  ■ 1: 90" in at
    far = text_of(panel_lines(UTIL, data_of(hardware=pair), look_of(cursor=9.0), 60, 10))[0]
    assert "● 0: –  ■ 1: –" in far  # nothing was recorded there
    small = text_of(panel_lines(UTIL, data_of(hardware=pair), look_of(), 26, 6))[0]
    assert small.rstrip() == f" {UTIL.title}  11–91", "no value is cut from a legend"
    many = tuple(HardwareCurve("utilization", f"GPU-{n}", bins(90 - n), 90.0 - n) for n in range(8))
    gpus = {f"GPU-{n}": n for n in range(8)}
    assert "83 (GPU 7) to 90" in text_of(panel_lines(UTIL, data_of(hardware=many), look_of(gpus=gpus), 60, 10))[0]


@pytest.mark.parametrize("count", [2, 8])
def test_a_file_names_each_gpu_whatever_it_measures(count: int, tmp_path: Path) -> None:
    """In the order of the GPUs, and as far as the window shows them."""
    found = tuple(HardwareCurve("utilization", f"GPU-{n}", bins(90 - n, 91), 91.0) for n in reversed(range(count)))
    look = look_of(gpus={f"GPU-{n}": n for n in range(count)}, window=(0.0, 1.0))
    curves = chart_file(tmp_path, "a-1", UTIL, data_of(hardware=found), look).drawing.curves
    assert [curve.label for curve in curves] == [f"{UTIL.title} GPU {n}" for n in range(count)]


def test_no_two_metrics_share_a_file(tmp_path: Path) -> None:
    keys = ["val/loss", "val_loss", "val.loss", "val loss", "/", "..", "größe", "grö_e", "x" * 300]
    names = [chart_file(tmp_path, "a-1", replace(UTIL, key=key), data_of(), look_of()).name for key in keys]
    assert len(set(names)) == len(keys) and names[0] == "val.loss-step" and names[1] == "val_loss-step"
    assert all(name and not name.startswith((".", "-")) and "/" not in name and len(name) < 200 for name in names)


def test_a_chart_that_cannot_be_a_png_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    wrote = write(chart_file(tmp_path, "a-1", UTIL, data_of(), look_of()))
    assert "pillow" in wrote and ".csv, .svg" in wrote
    assert sorted(path.suffix for path in (tmp_path / "charts").iterdir()) == [".csv", ".svg"]


MARKERS = (
    ChartMarker(3.0, "checkpoint", "ckpt", text="checkpoint of step 3"),
    ChartMarker(5.0, "restart", "↻1", attempt=2),
    ChartMarker(5.1, "incident", "cuda oom", at=NOW, text="CUDA ran out of memory on rank 1"),
)


def test_many_checkpoints_are_counted_in_place_of_marked() -> None:
    saved = tuple(ChartMarker(float(step), "checkpoint", "ckpt") for step in range(10))
    data = data_of(MetricCurve("loss", bins(*range(10)), last=9.0), markers=saved)
    assert text_of(panel_lines(LOSS, data, look_of(), 60, 10))[-1].count("┴") == 0
    assert text_of(panel_lines(LOSS, data, look_of(), 160, 10))[-1].count("┴") >= 4
    panels = Panels((LOSS,), 1)
    assert "10 checkpoints" in text_of([chart_head(data, panels, look_of(), (LOSS,), 60)])[0]
    assert "checkpoints" not in text_of([chart_head(data, panels, look_of(), (LOSS,), 160)])[0]


def test_a_logarithmic_axis_is_offered_where_values_lie_far_apart() -> None:
    far = data_of(MetricCurve("loss", bins(1000, 2, 1, 2), last=2.0))
    near = data_of(MetricCurve("loss", bins(10, 2, 1, 2), last=2.0))
    assert text_of(panel_lines(LOSS, far, look_of(), 60, 10))[0].endswith("y key: log axis")
    assert "y key: log axis" not in text_of(panel_lines(LOSS, near, look_of(), 60, 10))[0]
    logged = look_of(settings=ChartSettings(logs=frozenset({"loss"})))
    assert "y key: log axis" not in text_of(panel_lines(LOSS, far, logged, 60, 10))[0]


def test_memory_names_its_unit_once() -> None:
    panel = Panel("gpu/memory", HARDWARE["gpu/memory"][1], 0, "memory")
    curve = HardwareCurve("memory", "GPU-a", bins(40 * 2**30, 41 * 2**30), 41 * 2**30)
    text = "\n".join(text_of(panel_lines(panel, data_of(hardware=(curve,)), look_of(), 60, 9)))
    assert text.count("GiB") == 1 and "41.0" in text and "0 ┤" in text and "G ┤" not in text


def test_what_happened_stands_below_every_curve_and_is_named_at_the_crosshair() -> None:
    data = data_of(MetricCurve("loss", bins(*range(10)), last=9.0), markers=MARKERS)
    tall = text_of(panel_lines(LOSS, data, look_of(), 60, 12))
    assert "cuda oom" in tall[-1] and "┴" in tall[-2] and "┊" in tall[3]
    low = text_of(panel_lines(LOSS, data, look_of(), 60, 7))
    assert "cuda oom" not in "\n".join(low) and "┊" in low[1]
    head = text_of([chart_head(data, panels(("loss",), ChartSettings(), has_gpus=False), look_of(cursor=5.0), (LOSS,),
                               100)])[0]  # fmt: skip
    assert head == " │ step 5 · ✗ CUDA ran out of memory on rank 1 03:12:44 · ↻1"
    assert [marker.kind for marker in markers_near(MARKERS, 5.0, 0.5)] == ["incident", "restart"]
    assert next_marker(MARKERS, 3.0, 1) is MARKERS[1] and next_marker(MARKERS, 3.0, -1) is None
    assert next_marker(MARKERS, None, -1) is MARKERS[2]


def test_the_head_tells_the_hardware_at_the_crosshair_and_settings_otherwise() -> None:
    hardware = (HardwareCurve("utilization", "GPU-a", bins(97, 98), 98.0),
                HardwareCurve("utilization", "GPU-b", bins(12, 13), 13.0),
                HardwareCurve("temperature", "GPU-a", bins(64, 64), 64.0))  # fmt: skip
    data = data_of(MetricCurve("loss", bins(1, 2), redone=bins(1), last=2.0), hardware=hardware)
    there = panels(("loss",), ChartSettings(), has_gpus=True)
    head = text_of([chart_head(data, there, look_of(cursor=0.0), (LOSS,), 100)])[0]
    assert head == " │ step 0 · util 12–97% · 64 °C"
    settings = ChartSettings(smoothing=0.9, filter_text="lo*")
    few = panels(("loss",), settings, has_gpus=True)
    text = text_of([chart_head(data, few, look_of(settings=settings, window=(2.0, 4.0)), few.shown, 120)])[0]
    assert text == " x step · step 2 to 4 · smoothing 0.9 · /lo* · charts 1–1 of 1 (8 in all) · grey: redone"
    typed = text_of([filter_head(LineEdit.at_end("lo*"), few, 60)])[0]
    assert typed.startswith(" filter lo*") and typed.endswith("1 of 8 charts")


@pytest.mark.parametrize("size", [(80, 20), (71, 24), (119, 35), (40, 7)])
def test_charts_fill_their_place(
    page: RunPage, snapshot: Snapshot, workspace: Workspace, size: tuple[int, int]
) -> None:
    request = ChartRequest(names=("loss", "samples_per_s", "lr", "grad_norm"), hardware=("utilization",))
    with closing(open_reader(workspace.database)) as connection:
        read = SnapshotReader(workspace).read(connection, NOW, Interest("vit-b16-1", charts=request)).page
    assert read is not None and read.charts is not None
    found = panels(read.charts.names, ChartSettings(), has_gpus=True)
    spots = places(len(found.shown), *size, "grid")
    extent = extent_of(read.charts)
    assert extent is not None
    look = look_of(window=extent.whole, cursor=4310.0, focus="loss")
    lines = grid_lines(found.shown, spots, read.charts, look, *size)
    assert len(lines) == size[1] and widths(lines) == {size[0]}
    assert "loss" in text_of(lines)[0]


# --- long names and long stories


def test_a_long_name_leaves_its_place_to_the_state_and_the_step(page: RunPage, snapshot: Snapshot) -> None:
    name = "pretraining-with-a-name-that-a-sweep-made-lr0.0003-bs512-seed7-12"
    long = replace(page, run=replace(page.run, run_id=name, name=name))
    line = run_head(long, snapshot.gpus, NOW, 80)
    assert widths([line]) == {80}
    [text] = text_of([line])
    assert " · ● running ↻2 · 9 440/90k " in text and text.startswith(" pretrain") and "-12 ·" in text
    assert text_of([run_head(long, snapshot.gpus, NOW, 200)])[0].startswith(f" {name} · ● running")


def test_the_head_draws_neighbouring_gpus_together(page: RunPage, snapshot: Snapshot) -> None:
    uuids = [gpu.uuid for gpu in snapshot.gpus]
    assert gpu_words([*uuids[:4], uuids[6], "GPU-gone-with-the-wind"], snapshot.gpus) == "GPU 0–3, 6, GPU-gone-wit"
    assert gpu_words(["GPU-gone-with-the-wind"], snapshot.gpus) == "GPU GPU-gone-wit" and gpu_words([], ()) == "CPU"


def test_the_timeline_names_the_days(page: RunPage, snapshot: Snapshot) -> None:
    later = text_of(timeline_lines(page, snapshot.gpus, NOW + 86_400, 60))
    assert later[:2] == [" Sat 21 Nov 2026", " 00:09:22 queued"]
    assert [line for line in later if line.startswith(" S")] == [" Sat 21 Nov 2026"]
    early = replace(page, run=replace(page.run, created_at=page.run.created_at - 86_400))
    days = text_of(timeline_lines(early, snapshot.gpus, NOW, 60))
    assert days[0] == " Fri 20 Nov 2026" and days[2] == " Sat 21 Nov 2026" and days[3].endswith("started on GPU 6–7")


def test_the_crosshair_tells_the_date_where_the_run_has_more_than_one_day() -> None:
    frame = Frame("step", 0.0, 100.0, moments=((0.0, NOW - 3 * 86_400), (100.0, NOW)))
    data = ChartData(ChartRequest(names=("loss",)), frame)
    there = panels(("loss",), ChartSettings(), has_gpus=False)
    for cursor, words in ((0.0, "step 0 · 18 Nov 03:12:44"), (100.0, "step 100 · 03:12:44")):
        assert words in text_of([chart_head(data, there, look_of(cursor=cursor), (LOSS,), 80)])[0]


def test_parameters_have_the_room_that_they_need(page: RunPage) -> None:
    params = {"optimizer.weight_decay_schedule.final_value": 3.3000000000000003, "data": "/srv/data/imagenet-1k/train"}
    same = replace(page, launched=params, run=replace(page.run, params=params), incidents=(), decisions=())
    text = text_of(parameter_lines(same, NOW, 80))
    assert text[1].split() == ["optimizer.wei…e.final_value", "3.3000000000000003", "3.3000000000000003"]
    changed = replace(same, run=replace(page.run, params=params | {"data": "x"}))
    assert (
        widths(parameter_lines(changed, NOW, 46)) == {46}
        and "x" in text_of(parameter_lines(changed, NOW, 46))[1].split()
    )


def test_of_many_ranks_those_that_stand_out_are_named() -> None:
    curves = tuple(
        RankCurve(rank, (Bin(0.0, 10.0, value, value, value, value, 2),), value)
        for rank, value in enumerate([5.0, 4.0, 3.0, 9.0, 5.0, 6.0, 7.0, 5.5])
    )
    look = ChartLook(ChartSettings(), (0.0, 10.0), None, None, {}, frozenset({5}))
    drawn = rank_curves(Panel("step_time", "step time", 0), RankCurves(curves), look)
    assert [(curve.label, curve.value) for curve in drawn if curve.label] == [
        ("r5 slow", 6.0), ("r2 lowest", 3.0), ("r3 highest", 9.0),
    ]  # fmt: skip
    assert sum(bool(curve.bins) for curve in drawn) == 8
    assert drawn[-1].style == "warn" and drawn[-1].bins == curves[5].bins  # in front of all
    few = rank_curves(Panel("step_time", "step time", 0), RankCurves(curves[:3]), look)
    assert [curve.label for curve in few] == ["r0", "r1", "r2"]
    assert len({curve.style for curve in few}) == 3


def test_what_is_set_once_stands_behind_what_is_measured() -> None:
    names = ("world_size", "batch_size", "seconds", "loss", "accuracy")
    shown = [panel.key for panel in panels(names, ChartSettings(), has_gpus=False).shown]
    assert shown == ["loss", "accuracy", "host/cpu", "host/memory", "seconds"]
    found = panels(names, ChartSettings(pins=("world_size",), filter_text="size"), has_gpus=False)
    assert [panel.key for panel in found.shown] == ["world_size", "batch_size"], "what is asked for is there"


def test_the_timeline_tells_of_sinks(filler: Filler) -> None:
    """Where metrics also go, and what was said of that, at its time; a past moment knows no more than it did then."""
    filler.overnight()
    spec = json.loads(filler.connection.execute("SELECT spec FROM runs WHERE run_id = 'vit-b16-1'").fetchone()[0])
    spec["sinks"] = {"jsonl": "{run_dir}/x", "mlflow": "http://127.0.0.1:1"}
    filler.connection.execute("UPDATE runs SET spec = ? WHERE run_id = 'vit-b16-1'", (json.dumps(spec),))
    about: dict[str, Any] = {"key": "mlflow", "run_id": "vit-b16-1"}
    failed, recovered = "sink mlflow: no answer", "sink mlflow: is written again"
    add_event(filler.connection, "sink_failed", failed, now=NOW - 300, severity="warning", **about)
    add_event(filler.connection, "sink_recovered", recovered, now=NOW - 100, **about)
    add_event(filler.connection, "attempt_started", " sink mlflow: by name alone", now=NOW - 90, run_id="vit-b16-1")
    reader = SnapshotReader(filler.workspace)
    now = reader.read(filler.connection, NOW, Interest(run_id="vit-b16-1"))
    assert now.page is not None
    lines = timeline_lines(now.page, now.gpus, NOW, 80)
    text = text_of(lines)
    assert any("→ sinks: jsonl, mlflow" in line for line in text)
    told = [index for index, line in enumerate(text) if " sink mlflow: " in line]
    assert [lines[index][1][1] for index in told] == ["warn", "dim"]
    # Of what is read and kept of it too, of a run without sinks as well.
    del spec["sinks"]
    filler.connection.execute("UPDATE runs SET spec = ? WHERE run_id = 'vit-b16-1'", (json.dumps(spec),))
    unmatched: dict[str, Any] = {"key": "*.pt", "run_id": "vit-b16-1", "severity": "warning"}
    add_event(filler.connection, "checkpoints_unmatched", "no file matched *.pt", now=NOW - 50, **unmatched)
    page = SnapshotReader(filler.workspace).read(filler.connection, NOW, Interest(run_id="vit-b16-1")).page
    assert page is not None
    assert any("no file matched *.pt" in line for line in text_of(timeline_lines(page, now.gpus, NOW, 80)))
    then = reader.read(filler.connection, NOW, Interest(run_id="vit-b16-1", moment=Moment(NOW - 200)))
    assert then.page is not None
    assert [(event.kind, event.key) for event in then.page.data_events] == [("sink_failed", "mlflow")]


def test_what_was_measured_at_step_0_alone_has_no_place_on_a_logarithmic_axis() -> None:
    data = ChartData(
        ChartRequest(("a",), is_log=True), Frame("step", 0.0, 500.0), ("a",), {"a": MetricCurve("a", last=6.0)}
    )
    look = ChartLook(ChartSettings(is_log_x=True), (1.0, 500.0), None, None, {})
    lines = text_of(panel_lines(Panel("a", "a", 0), data, look, 60, 8))
    assert any("nothing measured above 0 here" in line for line in lines) and "a  6" in lines[0]
