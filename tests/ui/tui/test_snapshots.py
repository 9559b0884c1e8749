"""The text of pages and dialogs, each at four sizes: ``--snapshot-update``."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from syrupy.assertion import SnapshotAssertion

from gputui.runs.labels import Labels, store_labels
from tests.homes import Home
from tests.stories import bad_night, curve, history, overnight, search
from tests.ui.tui import many_processes
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.screens import feed_of, screen_text

SIZES = ((60, 15), (80, 24), (120, 36), (200, 50))


class Scene(NamedTuple):
    """The content of the store, and the keys that lead to the picture."""

    fill: Callable[[Home], object]
    keys: tuple[str, ...] = ()


def log_of(home: Home, run_id: str, attempt: int, text: str) -> None:
    folder = home.workspace.run_dir(run_id) / f"attempts/{attempt}/nodes/0/ranks/x/attempt_0/0"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text(text)


def alerts(home: Home) -> None:
    overnight(home)
    bad_night(home)


def no_driver(home: Home) -> None:
    home.agent(problem="No NVIDIA driver found (libnvidia-ml.so.1 is missing).")
    home.host()


def quarantine(home: Home) -> None:
    """Eight GPUs, one of them lost, one in quarantine; the cursor is among them."""
    overnight(home)
    home.quarantine(4, "XID 48: double bit ECC error, the GPU needs a reset")
    home.pause_queue()
    home.run("lr-sweep-4", "queued", name="lr-sweep", started_ago=None, waiting_for="waits for 2 GPUs")


def page_fault(home: Home) -> None:
    overnight(home)
    home.xid(3, 31, "memory page fault, mostly an error of the program (illegal address)")


def past(home: Home) -> None:
    overnight(home)
    history(home, 1500, every=10)


def running(home: Home) -> None:
    overnight(home)
    log_of(home, "vit-b16-1", 3, "".join(f"step {n} loss 1.9{n % 10}\n" for n in range(9000, 9441)))


def failed(home: Home) -> None:
    home.agent()
    home.gpus(1)
    home.sample(0)
    reason = "a Python exception on rank 0, three times at step 12: KeyError 'labels'"
    home.run("resnet50-2", "failed", ended_ago=4000.0, started_ago=9000.0, reason=reason)
    home.attempt("resnet50-2", 1, "failed", gpus=(0,), started_ago=9000.0, ended_ago=4000.0, code=1, last_step=12)
    curve(home, "resnet50-2", 1, 0, 12, end=home.now - 4000)
    home.metrics("resnet50-2", 1, [{"step": 13, "time": home.now - 4000, "rank": 0, "loss": "NaN"}])
    log_of(
        home, "resnet50-2", 1,
        "step 12 loss nan\nTraceback (most recent call last):\n  File 'train.py', line 3\nKeyError: 'labels'\n",
    )  # fmt: skip


def study(home: Home) -> None:
    overnight(home)
    search(home)


def labels(home: Home) -> None:
    overnight(home)
    store_labels(home.connection, "vit-b16-1", Labels("vit-best", ("base", "sweep:3"), "warm-up 500, the old seed"))
    store_labels(home.connection, "resnet50-2", Labels("resnet50", ("broken",), "labels column is missing"))


SCENES = {
    "overview": Scene(overnight),
    "overview with alerts": Scene(alerts),
    "no driver": Scene(no_driver),
    "quarantine and a paused queue": Scene(quarantine, ("shift+tab", "down", "down")),
    "past overview": Scene(past, ("left_square_bracket", "left_square_bracket")),
    "stopping asks first": Scene(overnight, ("s",)),
    "help": Scene(overnight, ("question_mark",)),
    "labels": Scene(labels, ("enter", "d")),
    "gpu": Scene(page_fault, ("shift+tab", "down", "down", "down", "i")),
    "running run": Scene(running, ("enter", "m", "m", *["left"] * 4)),
    "failed run": Scene(failed, ("enter", "3")),
    "processes": Scene(many_processes.fill, ("p", "v", "down")),
    "alerts": Scene(alerts, ("exclamation_mark",)),
    "study": Scene(study, ("S",)),
    "compare": Scene(overnight, ("space", "space", "c", "o", "m")),
    "palette": Scene(study, ("ctrl+p", *"vit")),
    "settings": Scene(overnight, ("comma",)),
    "profiles": Scene(overnight, ("n",)),
    "resume, restart or copy": Scene(overnight, ("r",)),
}


@pytest.fixture(autouse=True)
def checked_in_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiles of the repository, without what a person saved beside them."""
    root = Path(__file__).parents[3]
    listed = subprocess.run(
        ["git", "ls-files", "profiles/*.yaml"], cwd=root, capture_output=True, text=True, check=True
    )
    folder = tmp_path / "checkout" / "profiles"
    folder.mkdir(parents=True)
    for name in listed.stdout.split():
        shutil.copy(root / name, folder)
    monkeypatch.chdir(folder.parent)
    for module in ("gputui.ui.tui.dialogs.palette", "gputui.profiles.profile_file"):
        monkeypatch.setattr(f"{module}.shipped_profiles", lambda: folder)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", SCENES)
async def test_picture(
    snapshot: SnapshotAssertion, home: Home, make_app: MakeApp, name: str, size: tuple[int, int]
) -> None:
    scene = SCENES[name]
    scene.fill(home)
    app = make_app()
    if name == "processes":
        many_processes.give(app.feed)
    async with app.run_test(size=size) as pilot:
        for key in scene.keys:
            await pilot.press(key)
            feed_of(app).wait_for_checkpoints()
            await pilot.pause()
        assert screen_text(app) == snapshot
