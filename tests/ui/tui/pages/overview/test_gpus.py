"""The GPU area, the cards and the page of a GPU, as text."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from msgspec.structs import replace

from gputui.core.config import Workspace, locate
from gputui.store.series import GpuSlowSample
from gputui.ui.cli.gpus import gpu_user
from gputui.ui.tui.actions.keymap import Keys
from gputui.ui.tui.layout.gpu_words import gpu_row, health_spans, user_spans
from gputui.ui.tui.layout.strips import gpu_figures
from gputui.ui.tui.pages.gpu.view import fact_lines, pcie_words
from gputui.ui.tui.pages.overview.gpus import gpu_height, gpu_panel
from tests.homes import NOW, Home
from tests.stories import bad_night, many_gpus, overnight
from tests.texts import mentions
from tests.ui.tui.screens import read, styles_of, text_of, widths


def test_every_width_is_filled_exactly(tmp_path: Path) -> None:
    for count in (1, 8, 16):
        workspace = locate(tmp_path / str(count))
        home = Home(workspace)
        many_gpus(home, count)
        home.quarantine(count - 1, "it fell off the bus twice")
        snapshot = read(workspace)
        home.close()
        for width, height in itertools.product((40, 60, 80, 100, 120, 160, 200, 240), (4, 14, 30)):
            most = gpu_height(snapshot, width, height)
            lines = gpu_panel(snapshot, width, most)
            assert widths(lines) == {width}, (count, width, height)
            assert len(lines) == most, (count, width, height)
            text = "\n".join(text_of(lines))
            if height == 30:
                assert text.count(" r0") == 1, (count, width)
                assert "⊘" in text, (count, width)


def test_a_gpu_in_quarantine_says_so_and_how_it_ends(home: Home, workspace: Workspace) -> None:
    overnight(home)
    home.quarantine(4, "XID 48: double bit ECC error, the GPU needs a reset")
    snapshot = read(workspace)
    assert mentions(text_of(gpu_panel(snapshot, 80, 12))[6], " 4 ", "34°", "⊘ since 03:01:04: XID 48: ")
    home.quarantine(0, "the same")
    assert "gpt2-124m-1 r0 ⊘" in text_of(gpu_panel(read(workspace), 80, 12))[2]
    row = gpu_row(snapshot, snapshot.gpus[4])
    facts = "\n".join(text_of(fact_lines(row, page=None, now=NOW, width=200, keys=Keys())))
    assert mentions(facts, "XID 48")
    assert facts.count("under vit-b16-1") == facts.count("vit-b16-1") == 1
    assert mentions(facts, "before C clears it")


def test_health_names_the_worst_first(home: Home, workspace: Workspace) -> None:
    many_gpus(home, 3)
    home.slow(0, row_remap_failed=True, ecc_uncorrected=3)
    home.xid(0, 48, "double bit ECC error")
    home.slow(1, row_remap_pending=True)
    for _ in range(2):
        home.xid(1, 31, "memory page fault")
    home.slow(2, ecc_uncorrected=None, row_remap_pending=None)
    snapshot = read(workspace)

    def words(index: int) -> str:
        return "".join(text for text, _ in health_spans(gpu_row(snapshot, snapshot.gpus[index])))

    assert words(0).split(" · ") == ["row remap failed", "3 ECC uncorr.", "XID 48"]
    assert words(1) == "2 XIDs · remap due"
    assert words(2) == "–"  # the driver says nothing, which is not "ok"
    assert "3 XIDs" in text_of(gpu_figures(snapshot))


def test_a_desktop_and_the_lease_of_another_home_are_named(home: Home, workspace: Workspace) -> None:
    home.agent()
    home.gpus(1)
    xorg = {"pid": 9, "kind": "G", "user": "root", "command": "/usr/lib/xorg/Xorg :0"}
    for gib, locked_by, phrase, is_free in (
        (1, None, "free, beside Xorg of root", True), (3, None, "root · Xorg :0", False),
        (1, "vit-1 of alice (pid 5)", "held by vit-1 of alice (pid 5)", False),
    ):  # fmt: skip
        home.sample(0, memory_gib=gib)
        processes = json.dumps([{**xorg, "memory_bytes": gib << 30}])
        home.connection.execute("UPDATE gpus SET processes = ?, locked_by = ?", (processes, locked_by))
        snapshot = read(workspace)
        [gpu] = snapshot.gpus
        line = "".join(text for text, _ in user_spans(gpu_row(snapshot, gpu), 40))
        assert (line, "1 free" in text_of(gpu_figures(snapshot))) == (phrase, is_free)
        assert mentions(gpu_user(gpu, None), "free" if is_free else phrase)


def test_a_gpu_that_the_home_leaves_to_others_is_not_free_and_tells_who_has_it(
    home: Home, workspace: Workspace
) -> None:
    home.agent()
    home.gpus(1)
    bob = json.dumps([{"pid": 9, "kind": "C", "user": "bob", "command": "train.py", "memory_bytes": 2 << 30}])
    for processes, phrase in (("[]", "not used here (gpus.yaml)"), (bob, "bob · train.py")):
        home.sample(0, memory_gib=1)
        home.connection.execute("UPDATE gpus SET processes = ?, is_excluded = 1", (processes,))
        snapshot = read(workspace)
        [gpu] = snapshot.gpus
        line = "".join(text for text, _ in user_spans(gpu_row(snapshot, gpu), 40))
        assert (line, "0 free" in text_of(gpu_figures(snapshot))) == (phrase, True)
        assert gpu_user(gpu, None).endswith("not used here (gpus.yaml)")


def test_a_gpu_is_free_where_nobody_is_seen_and_its_memory_is_empty(home: Home, workspace: Workspace) -> None:
    home.agent()
    home.gpus(1)
    users = {}
    for memory, processes in itertools.product((0.4, 30.0, None), ("[]", None)):
        home.sample(0, memory_gib=memory)
        home.connection.execute("UPDATE gpus SET processes = ?", (processes,))
        snapshot = read(workspace)
        said = "".join(text for text, _ in user_spans(gpu_row(snapshot, snapshot.gpus[0]), 20))
        users[memory, processes] = said, "1 free" in text_of(gpu_figures(snapshot))
    assert users == {
        (0.4, "[]"): ("free", True),
        (0.4, None): ("free", True),
        (30.0, "[]"): ("no visible process", False),
        (30.0, None): ("–", False),
        (None, "[]"): ("free", True),
        (None, None): ("free", True),
    }


def test_what_a_lost_gpu_told_is_no_longer_so(home: Home, workspace: Workspace) -> None:
    overnight(home)
    snapshot = read(workspace)
    facts = fact_lines(gpu_row(snapshot, snapshot.gpus[7]), page=None, now=NOW, width=120, keys=Keys())
    text = text_of(facts)
    assert "✗ lost 03:02:11" in text[0]
    assert mentions(text[0], "last values")
    [power] = [line for line in facts if line[0][0].strip() == "power"]
    assert {style for _, style in power} <= {"dim", "track", "text"}
    assert styles_of(power, "W of") == {"dim"}


def test_memory_that_is_held_for_nothing_says_for_how_long(home: Home, workspace: Workspace) -> None:
    overnight(home)
    bad_night(home)  # the alert was raised after half an hour, 90 minutes ago
    snapshot = read(workspace)
    row = gpu_row(snapshot, snapshot.gpus[5])
    said = {30: "alice · sweep.py · idle 2 h", 20: "alice · idle 2 h", 15: "alice · sweep.py"}
    assert {width: "".join(text for text, _ in user_spans(row, width)) for width in said} == said


def test_a_narrow_cell_has_the_name_of_a_run_or_user_rather_than_parts_of_both(
    home: Home, workspace: Workspace
) -> None:
    overnight(home)
    snapshot = read(workspace)
    run = next(gpu for gpu in snapshot.gpus if gpu.run_id == "vit-b16-1")

    def words(index: int, width: int) -> str:
        return "".join(text for text, _ in user_spans(gpu_row(snapshot, snapshot.gpus[index]), width))

    assert [words(run.index, width) for width in (12, 9)] == ["vit-b16-1 r0", "vit-b16-1"]
    assert [words(5, width) for width in (16, 9)] == ["alice · sweep.py", "alice"]


def test_a_link_is_told_in_words_and_beside_the_best_only_where_it_is_less(home: Home, workspace: Workspace) -> None:
    home.gpus(1)
    (gpu,) = read(workspace).gpus
    assert pcie_words(gpu) == "gen 5, 16 lanes"
    limited = replace(gpu, facts=replace(gpu.facts, pcie_generation_max=5, pcie_width_max=16))
    assert pcie_words(limited) == "gen 5, 16 lanes"
    slow = replace(gpu.slow, pcie_generation=1, pcie_width=8)
    assert pcie_words(replace(limited, slow=slow)) == "gen 1 of 5, 8 of 16 lanes"
    assert pcie_words(replace(limited, slow=GpuSlowSample(gpu.uuid))) == "–"
