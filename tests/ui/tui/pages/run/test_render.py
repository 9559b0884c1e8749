"""The sections of a run's page, as text."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

import pytest
from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.metrics.curves.model import ChartData, ChartMarker, ChartRequest, Frame, HardwareCurve, MetricCurve
from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.parts import Line
from gputui.metrics.progress import RankRow, rank_rows
from gputui.store.database import open_reader
from gputui.store.metrics import queries
from gputui.store.metrics.roles import MetricRoles
from gputui.store.metrics.stored_lines import StoredLine
from gputui.store.run_states import RunState
from gputui.ui.tui.data.reader import SnapshotReader
from gputui.ui.tui.layout.chart_settings import ChartView
from gputui.ui.tui.layout.charts import ChartedRun, ChartLook, next_marker, panel_lines
from gputui.ui.tui.layout.columns import wrap_at_most
from gputui.ui.tui.layout.drawn_charts import DrawnCharts, crosshair_parts
from gputui.ui.tui.layout.panels import Panel, choose_panels
from gputui.ui.tui.pages.run.chart_files import file_name
from gputui.ui.tui.pages.run.sections import (
    SideSection,
    SideView,
    checkpoint_lines,
    checkpoint_words,
    cost_lines,
    parameter_lines,
    ranks_lines,
    share_lines,
    side_sections,
    timeline_lines,
)
from gputui.ui.views.metric_words import HARDWARE
from gputui.ui.views.snapshot import Checkpoint, CheckpointList, Interest, RunPage, Snapshot
from tests.homes import NOW, Home
from tests.stories import overnight
from tests.tables import table
from tests.texts import mentions
from tests.ui.tui.screens import text_of, widths

LOSS = Panel("loss", "loss", 0)
UTIL = Panel("gpu/utilization", "GPU util %", 2, "utilization")
MARKERS = (
    ChartMarker(3.0, "checkpoint", "ckpt", text="checkpoint of step 3"),
    ChartMarker(5.0, "restart", "↻1", attempt=2),
    ChartMarker(5.1, "incident", "cuda oom", at=NOW, text="CUDA ran out of memory on rank 1"),
)


def styles(lines: Iterable[Line], text: str) -> set[str]:
    return {style for line in lines for piece, style in line if text in piece}


@pytest.fixture
def snapshot(home: Home, workspace: Workspace) -> Snapshot:
    overnight(home)
    with closing(open_reader(workspace.database)) as connection:
        return SnapshotReader(workspace).read(connection, NOW, Interest("vit-b16-1"))


@pytest.fixture
def page(snapshot: Snapshot) -> RunPage:
    assert snapshot.page is not None
    return snapshot.page


def bins(*values: float, start: int = 0) -> tuple[Bin, ...]:
    columns = []
    for x, value in enumerate(values, start):
        column = Bin(float(x), float(x))
        column.add(float(x), value)
        columns.append(column)
    return tuple(columns)


def look_of(*curves: MetricCurve, hardware: tuple[HardwareCurve, ...] = (), markers: tuple[ChartMarker, ...] = (),
            cursor: float | None = None, **changes: object) -> ChartLook:  # fmt: skip
    request = ChartRequest(hardware=("utilization",), cursor=cursor)
    data = ChartData(request, Frame("step", 0.0, 9.0), tuple(c.name for c in curves),
                     curves={curve.name: curve for curve in curves}, hardware=hardware, markers=markers)  # fmt: skip
    gpus = {f"GPU-{n}": n for n in range(8)}
    look = ChartLook(ChartView(cursor=cursor), (ChartedRun(data),), gpus, window=(0.0, 10.0))
    return replace(look, **changes)  # type: ignore[arg-type]


LINE = MetricCurve("loss", bins(*range(10)), last=9.0)


def panel_text(panel: Panel, look: ChartLook, width: int = 60, height: int = 10) -> list[str]:
    return text_of(panel_lines(panel, look, width, height))


# --- parameters, ranks


def test_parameters_show_what_recovery_changed_and_why(page: RunPage) -> None:
    assert text_of(parameter_lines(page, NOW, 80))[:3] == [
        " batch_size              512 → 384  out of GPU memory 01:41:05",
        " grad_accum              1 → 2  out of GPU memory 01:41:05",
        " lr                      0.001",
    ]
    long = replace(page, launched={}, run=replace(page.run, params={"lr": 0.0190956478, "steps": 120000}))
    assert [line.split()[-1] for line in text_of(parameter_lines(long, NOW, 80))[:2]] == ["0.0191", "120000"]


def test_a_parameter_tells_its_values_from_the_launch_to_now(page: RunPage) -> None:
    """Launched with 64, resumed with 128, and brought back to 64 by recovery."""
    first, second, third = (
        replace(attempt, params={"batch_size": size})
        for attempt, size in zip(page.attempts, (64, 128, 64), strict=True)
    )
    first_failure = page.failures[0]
    assert first_failure.decision is not None
    recovered = first_failure._replace(decision=replace(first_failure.decision, params={"batch_size": 64}))
    story = replace(
        page,
        launched={"batch_size": 64},
        run=replace(page.run, params={"batch_size": 64}),
        attempts=(first, second, third),
        failures=(recovered,),
    )
    assert text_of(parameter_lines(story, NOW, 80))[0] == " batch_size  64 → 128 → 64  out of GPU memory 01:41:05"
    resumed = replace(story, run=replace(page.run, params={"batch_size": 96, "lr": 0.1}))
    assert text_of(parameter_lines(resumed, NOW, 80))[:2] == [" batch_size  64 → 96 (3×)", " lr          – → 0.1"]
    same = replace(story, attempts=(first,), failures=())
    assert text_of(parameter_lines(same, NOW, 80))[0] == " batch_size  64"


def test_slow_ranks_are_named_and_come_first() -> None:
    ranks = {n: RankRow(n, 100, NOW, 0.3, 0.006, slowdown=1.0) for n in range(4)}
    ranks[2] = RankRow(2, 100, NOW, 0.45, 0.12, slowdown=1.5)
    text = text_of(ranks_lines(ranks, 4, 80))
    assert text[1].startswith(" r2")
    assert text[1].endswith("▲ slow, 1.5× the median")
    assert "slow" not in text[2]
    assert "PEAK" not in text[0], "nobody reports it"
    fast = {0: ranks[0]._replace(samples_per_second=900.0)}
    heads = [text_of(ranks_lines(rows, len(rows), 80))[0] for rows in (fast, ranks | fast)]
    assert ["SAMPLES/S" in head for head in heads] == [True, False], "rank 0 reports that of all ranks"
    assert mentions(*text_of(ranks_lines({}, 4, 80)), "No rank")


def test_ranks_that_print_no_metrics_are_listed_too(home: Home, workspace: Workspace) -> None:
    home.run("vit-1", gpus=(0, 1, 2))
    home.attempt("vit-1", 1, gpus=(0, 1, 2))
    home.metrics("vit-1", 1, [{"step": step, "step_time": 0.1} for step in range(3)])
    with closing(open_reader(workspace.database)) as connection:
        page = SnapshotReader(workspace).read(connection, NOW, Interest("vit-1")).page
    assert page is not None
    assert page.rank_count == 3
    lines = text_of(ranks_lines(page.progress.ranks, page.rank_count, 80))
    assert [line.split() for line in lines[1:]] == [
        ["r0", "2", "100", "ms", "–"],
        ["r1", "–", "–", "–", "prints", "no", "metrics"],
        ["r2", "–", "–", "–", "prints", "no", "metrics"],
    ]


def test_the_rank_that_waits_least_for_others_is_the_slow_one() -> None:
    steps_alone = (0.5, 0.5, 0.9)
    lines = [
        StoredLine(1, rank, 10, NOW, {"step_time": 1.0, "comm_time": 1.0 - steps_alone[rank]}) for rank in range(3)
    ]
    rows = rank_rows(lines)
    assert [rows[rank].is_slow for rank in rows] == [False, False, True]
    work = [text.split()[2:4] for text in text_of(ranks_lines(rows, 3, 80))[1:]]
    assert work == [["900", "ms"], ["500", "ms"], ["500", "ms"]], "the row shows what it is called slow by"


def test_ranks_are_compared_over_the_newest_steps_that_all_have_written(home: Home, workspace: Workspace) -> None:
    home.run("vit-1")
    home.attempt("vit-1", 1)
    lines = [
        {"step": step, "rank": rank, "step_time": 0.1, "comm_time": 0.02 if rank == 1 else 0.06}
        for step in range(40)
        for rank in (0, 1)
    ]
    # One slow step of rank 0, which its peer has not written yet.
    lines.append({"step": 40, "rank": 0, "step_time": 0.9, "comm_time": 0.0})
    home.metrics("vit-1", 1, lines)
    with closing(open_reader(workspace.database)) as connection:
        means = queries.rank_means(connection, "vit-1", 1, 2)
        snapshot = SnapshotReader(workspace).read(connection, NOW, Interest("vit-1"))
    assert means[0]["comm_time"] == pytest.approx(0.06)
    assert means[1]["step_time"] == pytest.approx(0.1)
    assert snapshot.page is not None
    ranks = snapshot.page.progress.ranks
    assert ranks[1].is_slow
    assert not ranks[0].is_slow
    assert ranks[0].step == 40


# --- the timeline and what it cost


def test_the_timeline_tells_the_story_in_order(page: RunPage, snapshot: Snapshot) -> None:
    assert text_of(timeline_lines(page, snapshot.gpus, NOW, 80)) == [
        " 00:09:22 queued",
        " 00:09:24 started on GPUs 6–7",
        " 01:41:04 attempt 1 exited with code 1 after 1 h 32 min at step 4 310",
        " 01:41:04 CUDA ran out of memory on rank 1 at step 4310",
        "          → batch_size 512 → 384 and grad_accum 1 → 2, the effective batch",
        "            stays within 2 %",
        "          cost 311 steps, 1 h 2 min and 2 GPU-hours",
        " 01:41:54 attempt 2 resumed from step 4 000 on GPUs 6–7",
        " 03:02:11 attempt 2 was ended by SIGKILL after 1 h 20 min at step 8 110",
        " 03:02:11 GPU 7 was lost (XID 79) at step 8110",
        "          → left GPU 7 out and went on with one rank, for the other GPU is",
        "            healthy",
        "          cost 111 steps, 3 min 57 s and 0.06 GPU-hours",
        " 03:02:58 attempt 3 resumed from step 8 000 on GPU 6",
    ]
    tomorrow = text_of(timeline_lines(page, snapshot.gpus, NOW + 86_400, 80))
    assert tomorrow[:2] == [" Sat 00:09 queued", " Sat 00:09 started on GPUs 6–7"]
    remote = replace(page, run=replace(page.run, target="lab"), attempts=page.attempts[:1])
    assert " 00:09:24 started on lab" in text_of(timeline_lines(remote, snapshot.gpus, NOW, 80))
    assert mentions(*text_of(cost_lines(page, 80)), "2 incidents", "422 steps, 1 h 6 min", "2.1 GPU-hours")
    assert cost_lines(replace(page, failures=[failure._replace(cost=None) for failure in page.failures]), 80) == []
    evidence = text_of(timeline_lines(page, snapshot.gpus, NOW, 80, with_evidence=True))
    assert any(line.startswith("          · XID 79: ") for line in evidence)


# --- checkpoints


def test_checkpoints_tell_what_is_known_of_each(page: RunPage) -> None:
    listing = CheckpointList(
        (
            Checkpoint(
                "step_9000.pt",
                9000,
                3 << 30,
                modified_at=NOW - 90,
                is_valid=True,
                why="the CRC of each of its 9 members was checked",
            ),
            Checkpoint("step_8500.pt", 8500, 3 << 30, modified_at=NOW - 900, is_valid=False, why="is damaged"),
            Checkpoint("step_8000.pt", 8000, size_bytes=None, modified_at=None),
            Checkpoint(
                "step_7500.pt",
                7500,
                size_bytes=None,
                modified_at=None,
                is_valid=True,
                why="",
                attempt=2,
                refused="was left by a rollback",
            ),
        ),
        count=8,
        is_known=True,
    )
    here = replace(page, checkpoints=listing)
    lines = text_of(checkpoint_lines(here, NOW, 80))
    assert lines[0].split()[:6] == ["step", "9", "000", "3", "GiB", "1"]
    assert lines[0].endswith("✓ valid")
    assert "✗ is damaged" in lines[1]
    assert mentions(lines[2], "–", "· not checked  ← attempt 3 ")
    assert mentions(lines[3], "✗ was left", "attempt 2")
    assert lines[4] == "  … 4 older ones"
    # A file that is overwritten gets the step of the metrics at the time of writing.
    over = CheckpointList((Checkpoint("last.pth.tar", 9000, 3 << 30, NOW - 90),), count=1, is_known=True)
    assert text_of(checkpoint_lines(replace(page, checkpoints=over), NOW, 80))[0].startswith(" last.pth.tar ~9 000 ")


@pytest.mark.parametrize("width", [38, 52, 80, 120])
def test_a_gap_is_between_the_step_and_the_size_of_a_checkpoint(page: RunPage, width: int) -> None:
    sizes = {50: 10.8 * 1024, 90_000: 97.3 * 2**20}
    rows = [Checkpoint(f"step_{step}.pt", step, int(size), NOW - 90) for step, size in sizes.items()]
    for row, text in zip(rows, ("step 50  10.8 KiB", "step 90 000  97.3 MiB"), strict=True):
        here = replace(page, checkpoints=CheckpointList((row,), count=1, is_known=True))
        assert text in text_of(checkpoint_lines(here, NOW, width))[0]


def test_checkpoints_are_one_line_until_they_are_opened(page: RunPage, snapshot: Snapshot) -> None:
    listing = CheckpointList((Checkpoint("step_9.pt", 9, 1, NOW - 90, is_valid=True, attempt=1),), 1, is_known=True)
    listings = {
        "unknown: its specification cannot be read": None,
        "reading…": CheckpointList(),
        "none yet": CheckpointList(is_known=True),
        "on its target, not seen from here": CheckpointList(is_elsewhere=True),
        "newest 9, 1 min ago, ✓": listing,
    }
    assert [checkpoint_words(replace(page, checkpoints=listing), NOW) for listing in listings.values()] == list(
        listings
    )
    none = replace(page, checkpoints=listings["none yet"])
    assert checkpoint_words(none, NOW, is_past=True).startswith("none")
    for checkpoints in listings.values():
        here = replace(page, checkpoints=checkpoints)
        closed, opened = (
            side_sections(here, snapshot.gpus, NOW, 60, opened=names)["params"].height for names in ((), ("params",))
        )
        assert opened - closed == (checkpoints is listing)


def test_the_newest_checkpoint_is_one_that_the_run_wrote_before_its_end(page: RunPage) -> None:
    contested = Checkpoint("step_300.pt", 300, 1, NOW - 500, is_valid=True, refused="may be of vit-2")
    valid = Checkpoint("step_200.pt", 200, 1, NOW - 600, is_valid=True, attempt=1)
    rewritten = Checkpoint("step_250.pt", 250, 1, NOW - 60, is_valid=True, attempt=1)
    over = replace(page.run, state=RunState.FAILED, ended_at=NOW - 400)

    def told(*checkpoints: Checkpoint) -> RunPage:
        listed = CheckpointList(checkpoints, len(checkpoints), is_known=True)
        return replace(page, run=over, checkpoints=listed)

    assert checkpoint_words(told(contested, valid), NOW) == "newest 200, 10 min ago, ✓"
    assert checkpoint_words(told(contested), NOW) == "none"
    assert checkpoint_words(told(rewritten, valid), NOW) == "newest 200, 10 min ago, ✓"
    (row,) = text_of(checkpoint_lines(told(rewritten), NOW, 80))
    assert row.endswith("· written after the run's end")


@pytest.mark.parametrize("width", [38, 60])
def test_a_checkpoint_that_may_be_of_another_run_is_doubtful_and_not_broken(page: RunPage, width: int) -> None:
    why = "may be of train_mlp-with-warmup-12, which had the same folder"
    rows = [
        Checkpoint(f"step_{step}.pt", step, 1, NOW - 500, is_valid=True, refused=why, is_contested=True)
        for step in (300, 200)
    ]
    here = replace(page, checkpoints=CheckpointList(tuple(rows), 2, is_known=True))
    lines = checkpoint_lines(here, NOW, width)
    texts = text_of(lines)
    assert "? not" in texts[0]
    assert "? not" in texts[1]
    assert not any("✗" in line for line in texts)
    assert " ".join(" ".join(texts[2:]).split()) == f"? {why}"
    assert any("train_mlp-with-warmup-12," in line for line in texts)
    assert [style for line in lines for text, style in line if "?" in text] == ["warn"] * 3


def test_what_is_left_out_above_and_below_is_said() -> None:
    lines: list[Line] = [[(f"{number:<20}", "text")] for number in range(10)]
    section = SideSection("X", lines)
    view = SideView()
    assert view.visible(section, 20, 0) == []
    assert text_of(view.visible(section, 20, 4)) == ["0", "1", "2", "  … 7 more"]
    view.scroll(3)
    assert text_of(view.visible(section, 20, 4)) == ["  … 4 above", "4", "5", "  … 4 more"]
    view.scroll_to(end=True)
    assert text_of(view.visible(section, 20, 4)) == ["  … 7 above", "7", "8", "9"]
    story = SideSection("X", [[("  ", ""), *line] for line in lines], [[("cost", "")]], is_from_end=True)
    assert text_of(SideView().visible(story, 20, 4)) == ["  … 8 above", "  8", "  9", "cost"]


def test_the_focused_section_comes_first_and_the_last_fills_the_rest() -> None:
    lengths = {"params": 12, "ranks": 6, "story": 20}
    shares = {name: share_lines(lengths, name, 25) for name in (*lengths, "log")}
    assert all(sum(share.values()) == 25 for share in shares.values())
    assert [shares[name][name] for name in lengths] == [12, 6, 15]
    assert shares["params"]["story"] == 7
    assert share_lines(lengths, "log", 60) == {"params": 12, "ranks": 6, "story": 42}


# --- which charts, and where


def test_pins_come_first_then_what_matters_then_the_hardware() -> None:
    names = ("epoch", "my/metric", "grad_norm", "lr", "loss", "samples_per_s")
    panels = choose_panels(names, HARDWARE, ChartView())
    keys = [panel.key for panel in panels.chosen]
    assert keys[:6] == ["loss", "samples_per_s", "gpu/utilization", "lr", "grad_norm", "my/metric"]
    assert keys[-1] == "epoch"
    assert panels.count == len(keys)
    names_of_losses = ("eval_loss", "my/metric", "Loss/train", "acc")
    assert [panel.key for panel in choose_panels(names_of_losses, (), ChartView()).chosen][:2] == [
        "Loss/train",
        "eval_loss",
    ]
    roles = MetricRoles("my/metric", best="acc", mode="max")
    by_role = choose_panels(names_of_losses, (), ChartView(), roles).chosen
    assert [panel.key for panel in by_role][:3] == ["my/metric", "eval_loss", "acc"]
    pinned = choose_panels(names, HARDWARE, ChartView(pins=("my/metric", "gone"), filter_text="l*")).chosen
    assert [panel.key for panel in pinned] == ["my/metric", "loss", "lr"]
    assert pinned[0].is_pinned
    assert next(p.colour for p in panels.chosen if p.key == "lr") == pinned[2].colour  # wherever it stands
    broken = choose_panels(names, (), ChartView(filter_text="~("))
    assert broken.problem is not None
    assert "not a regular expression" in broken.problem


# --- charts


def test_the_line_of_the_crosshair_drops_whole_values() -> None:
    hardware = tuple(
        HardwareCurve(field, f"GPU-{n}", bins(1.0), 1.0, value + n)
        for field, value in (("power", 585.0), ("temperature", 69.0)) for n in (0, 3)
    )  # fmt: skip
    charts = DrawnCharts(look_of(LINE, hardware=hardware, markers=MARKERS[:1], cursor=0.0))
    lines = {width: charts.status_line((), width, "title") for width in (60, 36, 30)}
    heads = {width: "".join(text for text, _ in line).rstrip() for width, line in lines.items()}
    assert heads == {
        60: " │ step 0 · power 585–588 W · 69–72 °C",
        36: " │ step 0 · power 585–588 W",
        30: " │ step 0 · power 585–588 W",
    }  # fmt: skip


def test_the_legend_tells_the_newest_value_or_that_at_the_crosshair() -> None:
    assert " loss  9" in panel_text(LOSS, look_of(LINE), height=9)[0]
    tall = panel_text(LOSS, look_of(LINE))
    assert tall[0].strip() == "loss"
    assert [line for line in tall if line.endswith(" 9")]
    lines = panel_lines(LOSS, look_of(LINE, cursor=3.2, focus="loss"), 60, 10)
    assert text_of(lines)[0].startswith("▸loss  3")
    assert widths(lines) == {60}
    assert styles(lines, "│") >= {"cursor"}
    nan = MetricCurve("loss", bins(1.0, float("nan"), 2.0), last=2.0)
    assert mentions(panel_text(LOSS, look_of(nan, cursor=1.0))[0], "loss  nan", "× 1 not finite")


def test_smoothed_curves_keep_the_measured_ones_behind_them() -> None:
    curve = MetricCurve("loss", bins(5, 1, 5, 1), smooth=bins(5, 3, 3.5, 3), last=1.0)
    lines = panel_lines(LOSS, look_of(curve, window=(0.0, 4.0)), 60, 12)
    assert "~ 3  1" in text_of(lines)[0]
    styles = {
        style for line in lines[1:-1] for text, style in line if any(0x2800 < ord(char) < 0x2900 for char in text)
    }
    assert styles == {"series.0", "shadow"}


def test_each_gpu_has_its_curve_and_of_many_the_ends_have_a_name() -> None:
    pair = (HardwareCurve("utilization", "GPU-1", bins(90, 91), 91.0, 92.0),
            HardwareCurve("utilization", "GPU-0", bins(10, 11), 11.0, 12.0))  # fmt: skip
    many = tuple(HardwareCurve("utilization", f"GPU-{n}", bins(90 - n), 90.0 - n) for n in range(8))
    assert "100 ┤" in "\n".join(panel_text(UTIL, look_of(hardware=pair)))
    looks = {
        "● 0: 11  ■ 1: 91": look_of(hardware=pair),
        "● 0: 12  ■ 1: 92": look_of(hardware=pair, cursor=0.0),
        "● 0: –  ■ 1: –": look_of(hardware=pair, cursor=9.0),  # nothing was recorded there
        "● 0 highest: 90  ■ 7 lowest: 83": look_of(hardware=many),
    }
    assert [panel_text(UTIL, look)[0].split("%  ")[1].strip() for look in looks.values()] == list(looks)
    small = panel_text(UTIL, look_of(hardware=pair), 26, 6)[0]
    assert small.rstrip() == f" {UTIL.title}  11–91", "no value is cut from a legend"


def test_no_two_metrics_share_a_file() -> None:
    keys = ["val/loss", "val_loss", "val.loss", "val loss", "/", "..", "größe", "grö_e", "x" * 300]
    names = [file_name(key) for key in keys]
    assert len(set(names)) == len(keys)
    assert names[0] == "val.loss"
    assert names[1] == "val_loss"
    assert all(name and not name.startswith((".", "-")) and "/" not in name and len(name) < 200 for name in names)


def test_what_happened_stands_below_every_curve_and_is_named_at_the_crosshair() -> None:
    look = look_of(LINE, markers=MARKERS)
    tall = panel_text(LOSS, look, height=12)
    low = panel_text(LOSS, look, height=7)
    assert "cuda oom" in tall[-1]
    assert "┴" in tall[-2]
    assert "┊" in tall[3]
    assert "cuda oom" not in "\n".join(low)
    assert "┊" in low[1]
    at = [text for text, _ in crosshair_parts(look_of(LINE, markers=MARKERS, cursor=5.0), (LOSS,))]
    assert at == ["│ step 5", "✗ CUDA ran out of memory on rank 1 03:12:44", "↻1"]
    assert next_marker(MARKERS, 3.0, 1) is MARKERS[1]
    assert next_marker(MARKERS, 3.0, -1) is None
    assert next_marker(MARKERS, x=None, by=-1) is MARKERS[2]


@table("count, lines", [(3, ["one two", "three", "four"]), (2, ["one two", "three …"]), (1, ["one …"])])
def test_what_does_not_fit_ends_at_a_word_and_says_so(count: int, lines: list[str]) -> None:
    assert wrap_at_most("one two three four", 7, count) == lines


def test_a_profile_without_checkpoints_has_none_yet(home: Home, workspace: Workspace) -> None:
    """They are recognised below the working directory."""
    home.run("vit-1")
    home.attempt("vit-1", 1)
    home.connection.execute("UPDATE runs SET spec = json_set(spec, '$.checkpoints', NULL)")
    reader = SnapshotReader(workspace)
    reader.read(home.connection, NOW, Interest("vit-1"))
    reader.run_page.checkpoints.wait(60.0)
    page = reader.read(home.connection, NOW, Interest("vit-1")).page
    assert page is not None
    assert checkpoint_words(page, NOW) == "none yet"
