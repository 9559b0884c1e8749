"""The pages for readers: every link leads somewhere, and each picture is full and does not contradict itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from docs.screenshots import IMAGES, NOW, PICTURES, shown, still_home
from gputui.core.config import Workspace
from gputui.store.database import open_reader
from gputui.store.run_history import read_incidents
from gputui.store.studies import read_studies
from gputui.ui.demo.simulated_trainer import MODELS, Continuation
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.widgets.pane import Pane
from tests.ui.tui.conftest import StillFeed
from tests.ui.tui.conftest import same_everywhere as same_everywhere

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]
CURVE = re.compile("[\u2801-\u28ff]")
WITH_CURVES = {"overview": 80, "run": 250, "study": 40}
"""Pictures with charts, and the fewest cells that their curves go through."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with still_home(tmp_path_factory.mktemp("pictures") / "home") as workspace:
        yield workspace


def screen_text(app: GputuiApp) -> str:
    return "\n".join(pane.text for screen in app.screen_stack[-1:] for pane in screen.query(Pane))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]+))?\)", page.read_text("utf-8"))
    lost = [
        (path, anchor)
        for path, anchor in links
        for target in [page.parent / path if path else page]
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert lost == []


def test_every_picture_is_made_and_shown() -> None:
    linked = {image for page in PAGES for image in re.findall(r"images/([\w-]+)\.png", page.read_text())}
    assert {path.stem for path in IMAGES.glob("*.png")} == linked == {*PICTURES}


@pytest.mark.parametrize("name", PICTURES)
async def test_a_picture_is_full_and_does_not_contradict_itself(home: Workspace, name: str) -> None:
    async with shown(home, PICTURES[name]) as app:
        text = screen_text(app)
        assert len(CURVE.findall(text)) >= WITH_CURVES.get(name, 0)
        assert not re.search(r"no data|reading|\de…", text)
        assert "Traceback" not in app.message[0]
        runs = [row.run for row in app.snapshot.runs if row.run.study_id is None]
        for state in ("running", "queued"):
            count = sum(run.state == state for run in runs)
            if name.startswith("overview"):
                assert f"{count} {state}" in text
                assert len(re.findall(rf"^│?[ ▸].*\b{state}\b", text, re.MULTILINE)) >= count
        if name == "overview":
            used = [gpu.utilization_percent or 0.0 for gpu in app.snapshot.gpus]
            assert f"util {sum(used) / len(used):.0f}%" in text
            # Busy and idle GPUs do not have the same history.
            lines = [line for line in text.splitlines() if re.match(r"│[ ▸] *\d +\d+% ", line)]
            rows = {line[2:4].strip(): line[-14:-2] for line in lines}
            busy = {rows[str(gpu.index)] for gpu in app.snapshot.gpus if gpu.run_id is not None}
            idle = {rows[str(gpu.index)] for gpu in app.snapshot.gpus if gpu.run_id is None}
            assert len(rows) == 8
            assert not busy & idle


def test_the_demo_shows_at_its_start_what_gputui_is_for(home: Workspace) -> None:
    snapshot = StillFeed(home, NOW).read()
    runs = {row.run.run_id: row for row in snapshot.runs}
    running = [run_id for run_id, row in runs.items() if row.run.state == "running"]
    assert sorted(running) == ["gpt2-124m-2", "vit-b16-3"]
    assert all(runs[run_id].progress.loss is not None and runs[run_id].progress.losses for run_id in running)
    assert all(gpu.utilization_percent for gpu in snapshot.gpus if gpu.run_id in running)
    assert "0 of 4 GPUs free" in (runs["resnet50-2"].run.waiting_for or "")
    assert any(process.user == "bob" for gpu in snapshot.gpus for process in gpu.processes or ())
    assert [alert.rule for alert in snapshot.alerts] == ["gpu_hot"]
    assert len(snapshot.machine.quarantined) == 1
    with closing(open_reader(home.database)) as connection:
        recent = [incident.at for incident in read_incidents(connection, "vit-b16-3")]
        assert [study.state for study in read_studies(connection)] == ["finished"]
    assert len(recent) == 2
    assert recent[-1] > NOW - 600
    # The second run recovers while the reader looks at the page.
    continuation = Continuation.take(home.run_dir("gpt2-124m-2"))
    assert continuation is not None
    assert continuation.fails_at is not None
    assert 10 < (continuation.fails_at - continuation.step) * MODELS["gpt2-124m"].step_seconds(128) < 20


async def test_the_picture_of_a_recovered_run_tells_both_reasons(home: Workspace) -> None:
    async with shown(home, PICTURES["run"]) as app:
        text = screen_text(app)
        assert "lowered batch_size 512 → 256" in text
        assert "crashed in a GPU kernel" in text
        assert "newest 53 400, 1 min ago" in text
