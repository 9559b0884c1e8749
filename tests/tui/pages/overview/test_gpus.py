"""The GPU area, the cards and the page of a GPU, as text."""

from __future__ import annotations

from contextlib import closing

import pytest
from msgspec.structs import replace

from gputui.config import Workspace
from gputui.store.database import open_reader
from gputui.tui.data.reader import SnapshotReader
from gputui.tui.data.snapshot import Interest, Snapshot
from gputui.tui.layout.gpu_words import gpu_row, health, pcie_link, who
from gputui.tui.layout.strips import aggregate_line
from gputui.tui.pages.gpu.view import chart_lines, fact_lines, process_lines, report_lines
from gputui.tui.pages.overview.gpu_cards import card_grid, card_lines
from gputui.tui.pages.overview.gpus import GpuCursor, first_shown, gpu_height, gpu_lines
from tests.texts import mentions
from tests.tui.filling import NOW, Filler, uuid
from tests.tui.pages.overview.test_render import read, styles_of, text_of, widths


def with_page(workspace: Workspace, index: int, span_seconds: float = 600.0) -> Snapshot:
    with closing(open_reader(workspace.database)) as connection:
        interest = Interest(gpu_uuid=uuid(index), gpu_span_seconds=span_seconds)
        return SnapshotReader(workspace).read(connection, NOW, interest)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 200, 240])
@pytest.mark.parametrize("count", [1, 8, 16])
def test_every_width_is_filled_exactly(filler: Filler, workspace: Workspace, width: int, count: int) -> None:
    filler.many_gpus(count)
    filler.quarantine(count - 1, "it fell off the bus twice")
    snapshot = read(workspace)
    for height in (4, 12, 30):
        most = gpu_height(snapshot, width, height)
        lines = gpu_lines(snapshot, width, most)
        assert widths(lines) == {width} and len(lines) == most
        text = "\n".join(text_of(lines))
        if height == 30:
            assert text.count(" r0") == 1 and "in quarantine since 03:01:04" in text


def test_the_cursor_is_a_mark_in_the_margin(filler: Filler, workspace: Workspace) -> None:
    filler.many_gpus(16)
    snapshot = read(workspace)
    tall = text_of(gpu_lines(snapshot, 80, 17, GpuCursor(uuid(9))))
    assert [line for line in tall if line.startswith("▸")] == [tall[10]] and tall[10].startswith("▸ 9")
    short = text_of(gpu_lines(snapshot, 80, 9, GpuCursor(uuid(9))))
    assert "▸ 9" in short[2]


def test_gpus_that_do_not_fit_scroll_with_the_cursor(filler: Filler, workspace: Workspace) -> None:
    filler.many_gpus(16)
    snapshot = read(workspace)
    top = first_shown(16, 12, 0, 6, 60)
    text = text_of(gpu_lines(snapshot, 60, 6, GpuCursor(uuid(12), top)))
    assert any(line.startswith("▸12") for line in text) and text[-1].startswith("  … 12 more GPUs")
    assert first_shown(16, 12, 0, 17, 60) == 0


def test_a_gpu_that_trials_share_says_how_many(filler: Filler, workspace: Workspace) -> None:
    filler.overnight()
    snapshot = read(workspace)
    (gpu, *_) = [one for one in snapshot.gpus if one.run_id is not None]
    both = replace(gpu, shared_with=(("lr-t3-1", "lr-t3"),))
    row = gpu_row(snapshot, both)
    assert "".join(text for text, _ in who(row, 40)) == "2 runs"
    assert row.rank is None, "its step time is that of neither"


def test_a_gpu_in_quarantine_says_so_and_how_it_ends(filler: Filler, workspace: Workspace) -> None:
    filler.overnight()
    filler.quarantine(4, "XID 48: double bit ECC error, the GPU needs a reset")
    snapshot = read(workspace)
    text = text_of(gpu_lines(snapshot, 80, 10))
    assert "⊘ quarantine" in text[5]
    assert text[9] == " ⊘ GPU 4 in quarantine since 03:01:04: XID 48: double bit ECC err… · C clears it"
    for index in (0, 1):
        filler.quarantine(index, "the same")
    assert mentions(text_of(gpu_lines(read(workspace), 80, 10))[-1], "GPUs 0, 1, 4", "quarantine")
    row = gpu_row(snapshot, snapshot.gpus[4])
    facts = "\n".join(text_of(fact_lines(row, None, NOW, 100)))
    assert mentions(facts, "vit-b16-1", "attempt 2", "XID 48") and "`gputui gpus --clear 4`" in facts


def test_health_names_the_worst_first(filler: Filler, workspace: Workspace) -> None:
    filler.many_gpus(3)
    filler.slow(0, row_remap_failed=True, ecc_uncorrected=3)
    filler.xid(0, 48, "double bit ECC error")
    filler.slow(1, row_remap_pending=True)
    for _ in range(2):
        filler.xid(1, 31, "memory page fault")
    filler.slow(2, ecc_uncorrected=None, row_remap_pending=None)
    snapshot = read(workspace)

    def words(index: int) -> str:
        return "".join(text for text, _ in health(gpu_row(snapshot, snapshot.gpus[index])))

    assert words(0) == "row remap failed · 3 ECC uncorr. · XID 48"
    assert words(1) == "2 XIDs · remap due"
    assert words(2) == "–"  # the driver says nothing, which is not "ok"
    assert "XID 3" in text_of([aggregate_line(snapshot, 120)])[0]


def test_a_narrow_pcie_link_is_pointed_out(filler: Filler, workspace: Workspace) -> None:
    filler.many_gpus(1)
    gpu = read(workspace).gpus[0]
    assert pcie_link(replace(gpu, facts={"pcie_width_max": 16}, slow={"pcie_generation": 4, "pcie_width": 8})) == [
        ("▲4×8", "warn")
    ]
    assert pcie_link(replace(gpu, facts={"pcie_width_max": 16}, slow={"pcie_generation": 1, "pcie_width": 16})) == [
        ("1×16", "dim")
    ]


@pytest.mark.parametrize("missing", ["memory_temperature_celsius", "pcie_width", "pcie_received_bytes_per_second"])
def test_columns_that_no_gpu_fills_are_left_out(filler: Filler, workspace: Workspace, missing: str) -> None:
    head = {"memory_temperature_celsius": "MEM TEMP", "pcie_width": "LINK", "pcie_received_bytes_per_second": "PCIE"}
    filler.many_gpus(2)
    filler.slow(0, **{missing: None})
    lines = text_of(gpu_lines(read(workspace), 240, 5))
    assert head[missing] in lines[0] and "–" in lines[1]
    filler.slow(1, **{missing: None})
    assert head[missing] not in text_of(gpu_lines(read(workspace), 240, 5))[0]


def test_cards_appear_where_all_of_them_fit(filler: Filler, workspace: Workspace) -> None:
    filler.many_gpus(8)
    filler.lose(7)
    snapshot = read(workspace)
    assert card_grid(8, 80, 20) is None and card_grid(0, 200, 50) is None
    grid = card_grid(8, 200, 16)
    assert grid == (4, 2, 8)
    lines = card_lines(snapshot, 200, grid)
    assert len(lines) == 16 and widths(lines) == {200}
    text = text_of(lines)
    assert "0 llama-1 r0" in text[0] and "7 ✗ lost" in text[8] and text[1].count("utilisation") == 4
    assert card_grid(16, 240, 30) == (4, 4, 7)


@pytest.mark.parametrize("width", [40, 64, 80, 118])
def test_the_page_tells_everything_that_is_known(filler: Filler, workspace: Workspace, width: int) -> None:
    filler.overnight()
    filler.xid(3, 31, "memory page fault, mostly an error of the program")
    snapshot = with_page(workspace, 3)
    page, gpu = snapshot.gpu_page, snapshot.gpus[3]
    assert page is not None and page.history is not None
    lines = [
        *fact_lines(gpu_row(snapshot, gpu), page, NOW, width),
        *process_lines(gpu, width),
        *report_lines(page, NOW, width),
    ]
    assert widths(lines) == {width}
    text = " ".join(" ".join(text_of(lines)).split())
    for words in (
        "gpt2-124m-1 rank 3", "memory BW 48%", "reserved 0.5 GiB", "throttles at 87°C", "655 W of 700 W",
        "SM clock 1980 MHz", "hardware thermal", "XID 31", "5×16", uuid(3),
    ):  # fmt: skip
        assert words in text or width < 80, words
    hot = next(line for line in lines if "temperature" in line[0][0])
    assert styles_of(hot, "88°C") == {"warn"}
    for across in (1, 2):
        charts = chart_lines(gpu, page, width, 20, across=across)
        assert widths(charts) == {width} and "power" in "".join(text_of(charts))


def test_the_charts_of_a_page_reach_back_as_far_as_asked(filler: Filler, workspace: Workspace) -> None:
    filler.overnight()
    filler.sample(0, at=NOW - 3000, utilization=11.25)
    short, long = with_page(workspace, 0).gpu_page, with_page(workspace, 0, 3600.0).gpu_page
    assert short is not None and long is not None and short.history is not None and long.history is not None
    assert 11.25 not in short.history.utilization_percent and 11.25 in long.history.utilization_percent
    nothing = with_page(workspace, 7).gpu_page
    assert nothing is not None and nothing.leased_since is None


@pytest.mark.parametrize(
    ("memory", "processes", "said", "counted"),
    [(0.4, "[]", "free", 1), (0.4, None, "free", 1), (30.0, "[]", "no visible process", 0), (30.0, None, "–", 0),
     (None, "[]", "free", 1), (None, None, "–", 0)],
)  # fmt: skip
def test_a_gpu_is_free_where_nobody_is_seen_and_its_memory_is_empty(
    filler: Filler, workspace: Workspace, memory: float | None, processes: str | None, said: str, counted: int
) -> None:
    filler.agent()
    filler.gpus(1)
    filler.sample(0, memory_gib=memory)
    filler.connection.execute("UPDATE gpus SET processes = ?", (processes,))
    snapshot = read(workspace)
    assert "".join(text for text, _ in who(gpu_row(snapshot, snapshot.gpus[0]), 20)) == said
    assert f"{counted} free" in "".join(text for text, _ in aggregate_line(snapshot, 100))


def test_what_a_lost_gpu_told_is_no_longer_so(filler: Filler, workspace: Workspace) -> None:
    filler.overnight()
    snapshot = read(workspace)
    facts = fact_lines(gpu_row(snapshot, snapshot.gpus[7]), None, NOW, 120)
    text = text_of(facts)
    assert "✗ lost 03:02:11" in text[0] and mentions(text[0], "last values")
    [power] = [line for line in facts if line[0][0].strip() == "power"]
    assert {style for _, style in power} <= {"dim", "track", "text"} and styles_of(power, "W of") == {"dim"}


@pytest.mark.parametrize(
    ("width", "said"), [(28, "alice · python · idle 2 h"), (20, "alice · idle 2 h"), (15, "alice · python")]
)
def test_memory_that_is_held_for_nothing_says_for_how_long(
    filler: Filler, workspace: Workspace, width: int, said: str
) -> None:
    filler.overnight()
    filler.bad_night()  # the alert was raised after half an hour, 90 minutes ago
    snapshot = read(workspace)
    assert "".join(text for text, _ in who(gpu_row(snapshot, snapshot.gpus[5]), width)) == said
