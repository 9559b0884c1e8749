"""Two homes of one user on one machine: a login's, and one of cron or a container, which has no XDG_RUNTIME_DIR."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fakenvml.build import FakeNvml, NoCompilerError, build
from gputui.recovery.checkpoint_writers import PREFIX
from tests.conftest import wait_until
from tests.machine import Machine

PROFILE = f"""
name: steps
command: {sys.executable} steps.py --steps {{steps}}
workdir: .
gpus: 1
params: {{steps: 5}}
"""


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """Each with an agent of its own shell, on one GPU that a driver really lists: simulated ones are a home's own."""
    try:
        nvml = FakeNvml(build(tmp_path / "library"), tmp_path)
    except NoCompilerError as error:
        pytest.skip(f"the fake driver library cannot be built: {error}")
    nvml.configure(["gpus 1"])
    runtime = tmp_path / "of-login"
    runtime.mkdir(mode=0o700)
    made = []
    for name, place in (("login", {"XDG_RUNTIME_DIR": str(runtime)}), ("cron", {})):
        (tmp_path / name).mkdir()
        one = Machine(tmp_path / name)
        made.append(one)
        shell = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
        with one.start("agent", "start", env={**shell, **nvml.environment(), **place}) as process:
            _, errors = process.communicate(timeout=150)
        assert process.returncode == 0, errors
    yield made[0], made[1]
    for one in made:
        one.close()


@pytest.mark.long
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["login first", "cron first"])
def test_homes_of_one_user_never_share_a_gpu(homes: tuple[Machine, Machine], order: tuple[int, int]) -> None:
    first, second = (homes[place] for place in order)
    for one in (first, second):
        wait_until(lambda one=one: one.json("gpus"), what="the GPU")
    first.gputui("run", first.profile("steps", PROFILE), "--set", "steps=100000")
    first.wait_for("steps-1", "running")
    second.gputui("run", second.profile("steps", PROFILE))
    ((waits,),) = wait_until(
        lambda: second.rows("SELECT waiting_for FROM runs WHERE waiting_for LIKE '%held by%'"), what="the reason"
    )
    assert "another home" in waits
    first.gputui("stop", "steps-1", "--now")
    second.wait_for("steps-1", "succeeded")
    assert second.rows("SELECT 1 FROM incidents") == []


SAVES = """
name: saves
launcher: python
script: saves.py
python: {python}
gpus: 0
params: {{out: "{folder}"}}
checkpoints: {{dir: "{folder}", pattern: "*.pt", resume: "--resume {{checkpoint}}"}}
"""
# Saves the step that the test writes down, and fails when the test wants it.
SAVING_SCRIPT = """
import os, pathlib, sys, time, zipfile
own = pathlib.Path(os.environ["GPUTUI_RUN_DIR"])
while True:
    time.sleep(0.05)
    wanted = own / "save"
    if wanted.exists():
        with zipfile.ZipFile(pathlib.Path(sys.argv[2], wanted.read_text()), "w") as archive:
            archive.writestr("weights", str(own))
        wanted.unlink()
    if (own / "fail").exists():
        (own / "fail").unlink()
        raise RuntimeError("the dog ate the gradients")
"""


def saves(home: Machine, folder: Path, name: str) -> None:
    own = home.workspace.run_dir("saves-1")
    own.joinpath("wanted").write_text(name)
    own.joinpath("wanted").rename(own / "save")
    wait_until((folder / name).exists, what=name)
    wait_until(lambda: not (own / "save").exists(), what="the save's end")


def test_a_run_never_takes_the_checkpoint_of_another_homes_run_in_the_same_folder(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    homes = []
    try:
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            home = Machine(tmp_path / name)
            homes.append(home)
            (home.folder / "saves.py").write_text(SAVING_SCRIPT)
            home.gputui("run", home.profile("saves", SAVES.format(python=sys.executable, folder=folder)))
            home.wait_for("saves-1", "running", "starting")
            # Each tells the other at once.
            wait_until(lambda: len(list(folder.glob(f"{PREFIX}*[!p]"))) == len(homes), what="its file")
            saves(home, folder, f"step_{10 * len(homes)}.pt")
        one, other = homes
        (one.workspace.run_dir("saves-1") / "fail").touch()
        wait_until(
            lambda: one.rows("SELECT 1 FROM attempts WHERE number = 2 AND started_at IS NOT NULL"), what="attempt 2"
        )
        assert one.rows("SELECT resumed_from FROM attempts WHERE number = 2") == [(str(folder / "step_10.pt"),)]
        assert one.rows("SELECT path FROM checkpoints WHERE origin = 'contested'") == [(str(folder / "step_20.pt"),)]
        # Both lived when the second was written: it may be of either.
        (other.workspace.run_dir("saves-1") / "fail").touch()
        wait_until(lambda: other.rows("SELECT 1 FROM incidents"), what="its failure")
        assert other.rows("SELECT path, origin FROM checkpoints WHERE path LIKE '%step_20.pt'") == [
            (str(folder / "step_20.pt"), "contested")
        ]
        # The beginning would write over it.
        other.wait_for("saves-1", "failed")
        assert other.rows("SELECT count(*) FROM attempts") == [(1,)]
    finally:
        for home in homes:
            home.close()


# Says what memory it takes, then waits for a file with its trial's number.
TRIAL_SCRIPT = """
import json, os, pathlib, re, time
number = re.search(r"-t([0-9]+)-[0-9]+$", os.environ["GPUTUI_RUN_ID"])[1]
out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(out, (json.dumps({"step": 1, "loss": 1.0, "gpu_mem_peak": 1 << 30}) + "\\n").encode())
while not pathlib.Path(__file__).with_name(f"end-{number}").exists():
    time.sleep(0.02)
"""

TRIAL_PROFILE = f"""
name: trial
launcher: python
script: trial.py
python: {sys.executable}
gpus: 1
params: {{rate: 0.5}}
args: ""
metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
"""

STUDY = """
profile: ./trial.yaml
space: {rate: [0.1, 0.2]}
objective: {metric: loss}
sampler: grid
trials_per_gpu: 2
"""


@pytest.mark.long
def test_trials_that_share_a_gpu_keep_it_from_another_home_until_the_last_one_ends(
    homes: tuple[Machine, Machine],
) -> None:
    first, second = homes
    for one in homes:
        wait_until(lambda one=one: one.json("gpus"), what="the GPU")
    for name, text in (("trial.py", TRIAL_SCRIPT), ("trial.yaml", TRIAL_PROFILE), ("s.yaml", STUDY)):
        (first.folder / name).write_text(text)
    first.gputui("study", "run", "s.yaml")
    on_gpu = "SELECT count(*) FROM runs WHERE state = 'running'"
    wait_until(lambda: first.rows(on_gpu) == [(2,)], 60, "both trials on the GPU")
    ((ends_first,),) = first.rows("SELECT run_id FROM runs WHERE trial = 0")
    second.gputui("run", second.profile("steps", PROFILE))
    held = "SELECT waiting_for FROM runs WHERE waiting_for LIKE '%held by%'"
    wait_until(lambda: second.rows(held), what="the reason")
    # Whoever took the locks of both is gone, then one of the two is.
    first.kill_agent()
    (first.folder / "end-0").touch()
    wait_until(lambda: not first.marked(ends_first), what="the end of the first trial")
    looks = "SELECT max(at) FROM gpu_samples"
    before = second.rows(looks)[0][0]
    wait_until(lambda: second.rows(looks)[0][0] > before + 2, what="some looks at the GPU that it left")
    assert second.rows("SELECT count(*) FROM attempts") == [(0,)] and second.rows(held)
    (first.folder / "end-1").touch()
    second.wait_for("steps-1", "succeeded")
    assert second.rows("SELECT 1 FROM incidents") == []
