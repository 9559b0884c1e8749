"""The demo's home while it is open, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from gputui.recovery.watch.loss_history import LossHistory
from gputui.recovery.watch.rules import RULES
from gputui.runs.checkpoint_formats import validate
from gputui.store.attempts import read_attempts
from gputui.store.database import open_reader
from gputui.store.run_history import read_incidents
from gputui.store.runs import Run, find_run
from gputui.store.studies import read_studies
from gputui.ui.demo import past, simulated_trainer
from gputui.ui.demo.home import demo_home
from gputui.ui.demo.past import DemoPast
from gputui.ui.demo.simulated_trainer import MODELS, WEIGHT_DECAY, SimulatedTraining
from gputui.ui.demo.stories import STORIES
from gputui.ui.tui.commands import start_study
from gputui.ui.tui.pages.study.choose import make_plan
from tests.conftest import wait_until


def processes_of(folder: str) -> list[int]:
    pids = []
    for process in psutil.process_iter(["cmdline"]):
        if process.pid != os.getpid() and any(folder in word for word in process.info["cmdline"] or ()):
            pids.append(process.pid)
    return pids


def test_a_run_recovers_another_waits_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(DemoPast.make, "__defaults__", (STORIES[-2:],))
    monkeypatch.setattr(past, "SAMPLED_SECONDS", 3600.0)
    monkeypatch.setattr(past, "MAX_TRIAL_LINES", 20)
    with demo_home() as workspace, closing(open_reader(workspace.database)) as connection:

        def run() -> Run:
            return find_run(connection, "gpt2-124m-1")

        assert (run().state, run().attempt) == ("running", 2)
        begin = run().last_step or 0
        wait_until(lambda: (run().last_step or 0) > begin, 60, "another step of the same attempt")
        wait_until(lambda: (run().state, run().attempt) == ("running", 3), 60, "the recovery")
        [incident] = read_incidents(connection, "gpt2-124m-1")
        assert incident.kind == "cuda_oom"
        first, second, third = read_attempts(connection, "gpt2-124m-1")
        assert [attempt.params["batch_size"] for attempt in (first, second, third)] == [64, 128, 64]
        assert third.resumed_step is not None
        assert third.resumed_step > (second.resumed_step or 0) > 49_000
        waiting = find_run(connection, "resnet50-1")
        assert waiting.state == "queued"
        assert waiting.waiting_for
        folder = str(workspace.state.parent)
        # A study that goes on launching trials must end, too.
        plan = make_plan(workspace.study_files / "vit-lr.yaml", workspace, tmp_path, situation=None, with_process=True)
        assert plan.base is not None
        assert plan.spec is not None
        start_study(workspace, plan.base, plan.spec, plan.source)
        wait_until(lambda: any(not study.state.is_over for study in read_studies(connection)), 60, "the study")
    assert not Path(folder).exists()
    wait_until(lambda: not processes_of(folder), 60, "the end of every process of the demo")


def test_the_script_saves_when_it_is_asked_to_end(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    environment = {**os.environ, "GPUTUI_METRICS": str(metrics), "CUDA_VISIBLE_DEVICES": "0,1"}
    argv = [
        sys.executable, simulated_trainer.__file__, "--out", str(tmp_path), "--model", "gpt2-124m", "--steps", "1000",
    ]  # fmt: skip
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
    wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 20, 60, "steps of both ranks")
    process.terminate()
    assert process.wait(60) == 0
    saved = max((tmp_path / "checkpoints").glob("step_*.safetensors"))
    info = validate(saved)
    assert info.valid
    assert (info.size_bytes or 0) > 400_000_000
    assert saved.stat().st_blocks * 512 < 100_000
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    last_step = max(line["step"] for line in lines if line["rank"] == 0)
    assert saved.name == f"step_{last_step:06d}.safetensors"
    again = [*argv, "--resume", str(saved)]
    again[again.index("1000")] = str(last_step + 3)
    assert subprocess.run(again, env=environment, stdout=subprocess.DEVNULL, timeout=60, check=False).returncode == 0


def test_samples_a_second_do_not_depend_on_the_samples_of_a_step() -> None:
    model = MODELS["gpt2-124m"]
    assert 64 / model.step_seconds(64) == 128 / model.step_seconds(128) == 160.0


@pytest.mark.parametrize(
    ("model", "total", "lr", "begin"), [("gpt2-124m", 120_000, 6e-4, 49_400), ("vit-b16", 90_000, 2.5e-4, 52_800)]
)
def test_losses_fall_so_steadily_that_no_alert_says_otherwise(model: str, total: int, lr: float, begin: int) -> None:
    """For the first three hours of a demo: a mean of losses is a better one within each ten minutes."""
    training = SimulatedTraining(MODELS[model], total, lr, WEIGHT_DECAY)
    history = LossHistory()
    ten_minutes = int(600 / MODELS[model].usual_seconds)
    patience = RULES["no_improvement"].limits["steps"]
    for step in range(begin, begin + 18 * ten_minutes):
        history.add(training.training_loss(step), step, None, patience)
        assert (history.steps_since(step, patience) or 0) < ten_minutes
    means = [
        statistics.fmean(map(value, range(begin, begin + 1000)))
        for value in (training.training_loss, training.validation_loss)
    ]
    assert means[0] < means[1] < 1.1 * means[0]
