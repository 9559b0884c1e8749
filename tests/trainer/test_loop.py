"""Whole runs in one process: resuming, stopping, failing, and what they leave behind."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tables import table
from tests.texts import mentions
from tests.trainer.checkpoint_files import flip_a_byte
from tests.trainer.comparing import final_state, same
from tests.trainer.ranks import ALONE
from tests.trainer.running import checkpoints, events, lines, settings, step_lines, train
from trainer.checkpoints import files
from trainer.data.contract import Fields
from trainer.data.feed import HeldOut
from trainer.optim import set_learning_rate
from trainer.session import PhaseSession, TrainingProgress
from trainer.stepping import Stepper

pytestmark = pytest.mark.filterwarnings("ignore:Unable to enable fault handler")  # stderr is captured

STEADY = ("--steps", "40", "--validate-every", "0", "--checkpoint-every", "20")


@contextlib.contextmanager
def resumed(output: Path, *flags: str) -> Iterator[PhaseSession]:
    """A session that has taken over the newest checkpoint."""
    chosen = settings("--output-dir", str(output), *flags)
    with PhaseSession(chosen, ALONE, 1, TrainingProgress()) as session:
        session.load(final_state(output))
        yield session


def send_once(number: int, is_due: Callable[[], bool]) -> Callable[[], None]:
    """Sends a signal to this process, the first time that it is due."""
    sent: list[int] = []

    def send() -> None:
        if not sent and is_due():
            sent.append(number)
            os.kill(os.getpid(), number)

    return send


def when(look: Callable[[], bool], then: Callable[[], None]) -> threading.Thread:
    """Does something from another thread as soon as a condition holds."""

    def wait() -> None:
        deadline = time.monotonic() + 300
        while not look() and time.monotonic() < deadline:
            time.sleep(0.002)
        then()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def reached(output: Path, step: int) -> Callable[[], bool]:
    return lambda: (output / "metrics.jsonl").exists() and f'"step": {step},' in (output / "metrics.jsonl").read_text()


def test_a_crash_and_a_resume_equal_a_straight_run_bit_for_bit(tmp_path: Path) -> None:
    straight = tmp_path / "straight"
    broken = tmp_path / "broken"
    assert train(straight, *STEADY) == 0
    with pytest.raises(RuntimeError, match="injected crash at step 31"):
        train(broken, *STEADY, "--inject", "crash@step=31")
    assert train(broken, *STEADY, "--inject", "crash@step=31", "--resume", "auto") == 0
    first = final_state(straight)
    second = final_state(broken)
    for part in ("model", "optimizer", "random", "samples", "step", "epoch", "metrics"):
        assert same(first[part], second[part]), part
    again = [line["loss"] for line in step_lines(broken)[30:]]
    assert again == [line["loss"] for line in step_lines(straight)[20:]]


def test_with_fp16_lines_have_the_scale_that_the_next_step_takes(tmp_path: Path) -> None:
    scale = ("--device", "cpu", "--precision", "fp16", "--loss-scale", "8", "--loss-scale-interval", "2")
    assert train(tmp_path, *STEADY, "--steps", "5", *scale) == 0
    assert [line["loss_scale"] for line in step_lines(tmp_path)] == [8, 16, 16, 32, 32]


def test_metrics_hold_every_step_once_and_the_events_around_them(tmp_path: Path) -> None:
    assert train(tmp_path, "--steps", "12", "--validate-every", "5", "--checkpoint-every", "6") == 0
    steps = step_lines(tmp_path)
    assert [line["step"] for line in steps] == list(range(1, 13))
    for line in steps:
        assert line["samples"] == line["step"] * 16
        assert line["epoch"] == 0
        assert line["rank"] == 0
        assert line["step_time"] > line["data_time"] >= 0
        assert line["grad_norm"] > 0
        assert line["samples_per_s"] > 0
    assert [line["event"] for line in lines(tmp_path) if "event" in line] == [
        "start",
        "validation",
        "checkpoint",
        "validation",
        "validation",
        "checkpoint",
        "end",
    ]
    [start] = events(tmp_path, "start")
    [end] = events(tmp_path, "end")
    assert {"total_steps": 12, "world_size": 1, "batch_size": 8, "grad_accum": 2}.items() <= start.items()
    last = events(tmp_path, "validation")[-1]
    assert end["test_accuracy"] == last["val/accuracy"]
    assert last["step"] == 12
    saved = events(tmp_path, "checkpoint")[-1]
    assert saved["bytes"] == Path(saved["path"]).stat().st_size
    assert saved["seconds"] > 0


def test_a_flipped_byte_is_reported_and_the_one_before_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, *STEADY, "--steps", "30", "--checkpoint-every", "10") == 0
    flip_a_byte(tmp_path / "checkpoints" / "step_00000030.pt")
    assert train(tmp_path, *STEADY, "--resume", "auto") == 0
    assert mentions(capsys.readouterr().err, "step_00000030.pt", "sha256", "one before")
    assert [Path(event["path"]).name for event in events(tmp_path, "resume")] == ["step_00000020.pt"]
    assert len(events(tmp_path, "checkpoint_rejected")) == 1
    assert [line["step"] for line in step_lines(tmp_path)[30:]] == list(range(21, 41))
    # The corrupt one was set aside and went once a valid one had passed its step.
    assert checkpoints(tmp_path) == ["step_00000010.pt", "step_00000020.pt", "step_00000040.pt"]
    assert list((tmp_path / "checkpoints").glob("*.stale")) == []


def test_a_batch_that_was_stepped_down_stays_so_unless_another_is_asked_for(tmp_path: Path) -> None:
    flags = ("--oom-retries", "2", "--inject", "oom@step=3,above=4")
    assert train(tmp_path, "--steps", "5", *flags) == 0
    with resumed(tmp_path) as session:
        assert session.batches == (4, 4)
    with resumed(tmp_path, "--batch-size", "16", "--grad-accum", "1") as session:
        assert session.batches == (16, 1)


def test_settings_given_on_resume_win(tmp_path: Path) -> None:
    assert train(tmp_path, "--steps", "10", "--warmup-steps", "0") == 0
    flags = ("--steps", "20", "--lr", "0.1", "--warmup-steps", "0", "--weight-decay", "0.7")
    with resumed(tmp_path, *flags) as session:
        assert set_learning_rate(session.strategy.optimizer, session.phase_step + 1, session.settings) > 0.01
        assert [group["weight_decay"] for group in session.strategy.optimizer.param_groups] == [0.7, 0.0]


def test_starting_over_sets_the_former_checkpoints_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "--steps", "9") == 0
    assert train(tmp_path, "--steps", "4") == 0
    assert checkpoints(tmp_path) == ["step_00000004.pt"]
    assert "set aside" in capsys.readouterr().err
    files.verify(tmp_path / "checkpoints" / "step_00000004.pt")


def test_a_loss_that_is_not_finite_ends_the_run_before_it_is_saved(tmp_path: Path) -> None:
    flags = ("--steps", "12", "--checkpoint-every", "1", "--inject", "nan@step=8")
    with pytest.raises(FloatingPointError, match="loss is nan and the gradient norm nan at step 8"):
        train(tmp_path, *flags)
    last = step_lines(tmp_path)[-1]
    assert last["step"] == 8
    assert math.isnan(last["loss"])
    assert checkpoints(tmp_path)[-1] == "step_00000007.pt"
    assert train(tmp_path, *flags, "--resume", "auto") == 0
    assert all(math.isfinite(line["loss"]) for line in step_lines(tmp_path)[8:])


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--steps", "9", "--checkpoint-every", "3", "--inject", "disk_full@step=4")
    assert train(tmp_path, *flags) == 0
    assert checkpoints(tmp_path) == ["step_00000003.pt", "step_00000009.pt"]
    [failed] = events(tmp_path, "checkpoint_failed")
    assert failed["step"] == 6
    assert "No space left on device" in failed["error"]
    assert "step_00000006.pt was not written" in capsys.readouterr().err


def test_a_run_that_cannot_save_its_end_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--steps", "9", "--checkpoint-every", "3", "--inject", "disk_full@step=4,times=always")
    assert train(tmp_path, *flags) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"trainer: checkpoint {tmp_path}")
    assert "No space left on device" in said
    assert checkpoints(tmp_path) == ["step_00000003.pt"]
    assert events(tmp_path, "end") == []


@table("place", ["file", "file/below"])
def test_a_folder_where_nothing_can_be_saved_is_refused_before_anything_is_done(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    assert train(tmp_path, "--checkpoint-dir", str(tmp_path / place)) == 2
    assert capsys.readouterr().err.startswith(f"trainer: --checkpoint-dir {tmp_path / place} cannot be made: ")
    assert step_lines(tmp_path) == []


@table("steps", ["9", "3"])
def test_a_stop_gives_up_a_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: str) -> None:
    batches = HeldOut.batches
    send = send_once(signal.SIGTERM, lambda: True)

    def interrupted(held_out: HeldOut, batch_size: int) -> Iterator[Fields]:
        for fields in batches(held_out, batch_size):
            send()
            yield fields

    monkeypatch.setattr(HeldOut, "batches", interrupted)
    flags = ("--steps", steps, "--validate-every", "3")
    assert train(tmp_path, *flags) == 0
    [stop] = events(tmp_path, "stop")
    assert (stop["step"], stop["reason"]) == (3, "SIGTERM")
    assert checkpoints(tmp_path) == ["step_00000003.pt"]
    assert events(tmp_path, "validation") == []
    assert train(tmp_path, *flags, "--resume", "auto") == 0
    assert [line["step"] for line in step_lines(tmp_path)] == list(range(1, int(steps) + 1))
    assert len(events(tmp_path, "end")) == 1


def test_a_stop_signal_leaves_a_checkpoint_and_exit_code_0(tmp_path: Path) -> None:
    # The step is long enough that the run cannot end by itself before the signal.
    slow = ("--inject", "slow@step=1,seconds=0.02,times=always", "--checkpoint-every", "0")
    thread = when(reached(tmp_path, 3), lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert train(tmp_path, "--steps", "500", *slow) == 0
    thread.join()
    last = step_lines(tmp_path)[-1]["step"]
    assert 3 <= last < 500
    [stop] = events(tmp_path, "stop")
    assert (stop["step"], stop["reason"]) == (last, "SIGTERM")
    assert checkpoints(tmp_path) == [f"step_{last:08d}.pt"]
    assert train(tmp_path, "--steps", str(last + 2), "--resume", "auto") == 0
    assert [line["step"] for line in step_lines(tmp_path)] == list(range(1, last + 3))


@table("moment", ["before the ranks agree", "after it"])
def test_usr1_saves_and_goes_on(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = "gradients" if moment == "before the ranks agree" else "update"
    original = getattr(Stepper, method)
    calls: list[int] = []
    send = send_once(signal.SIGUSR1, lambda: len(calls) == 3)

    def counted(stepper: Stepper, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        send()
        return original(stepper, *arguments, **options)

    monkeypatch.setattr(Stepper, method, counted)
    assert train(tmp_path, "--steps", "30", "--checkpoint-every", "0") == 0
    step = 3 if method == "gradients" else 4
    assert [event["step"] for event in events(tmp_path, "checkpoint")] == [step, 30]
    assert len(step_lines(tmp_path)) == 30


@table(
    ("flags", "message"),
    [
        (["--precision", "fp16"], "--precision fp16 needs a CUDA GPU"),
        (["--device", "cuda"], "--device cuda: no CUDA device is visible"),
        (["--metrics", "/dev/null/metrics.jsonl"], "--metrics /dev/null/metrics.jsonl cannot be written"),
    ],
)
def test_settings_that_this_machine_cannot_meet(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, *flags) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"trainer: {message}")
    assert error.count("\n") == 1


def test_a_small_language_model_learns(tmp_path: Path) -> None:
    flags = ("--task", "lm", "--width", "32", "--context", "16", "--batch-size", "16", "--lr", "0.01")
    assert train(tmp_path, *flags, "--steps", "25") == 0
    losses = [line["loss"] for line in step_lines(tmp_path)]
    assert losses[0] == pytest.approx(math.log(256), abs=0.3)
    assert losses[-1] < 4
    assert 1 < events(tmp_path, "end")[0]["test_perplexity"] < math.exp(4)


def test_the_search_for_a_batch_begins_with_two_samples_for_batch_statistics(tmp_path: Path) -> None:
    code = "tests.trainer.own_code"
    flags = ["--data", "digits", "--task", f"{code}:Pixels", "--model", f"{code}:Autoencoder", "--steps", "2"]
    assert train(tmp_path, *flags, "--batch-size", "auto", "--max-batch-size", "4") == 0
    [event] = events(tmp_path, "batch_found")
    assert event["batch_size"] == 4


def test_garbage_is_looked_for_at_the_given_steps_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    at = {"step": 0}
    step = Stepper.step

    def counted(self: Stepper) -> tuple[bool, bool]:
        at["step"] = self.progress.step + 1
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 10_000
        # Enough new objects that Python would look for garbage several times.
        self.garbage = [[] for _ in range(20_000)]  # type: ignore[attr-defined]
        return step(self)

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and at["step"]:
            collected.append(at["step"])

    monkeypatch.setattr(Stepper, "step", counted)
    gc.callbacks.append(note)
    try:
        steps = ("--steps", "7", "--validate-every", "0", "--checkpoint-every", "0")
        assert train(tmp_path / "rarely", *steps, "--gc-every", "3") == 0
    finally:
        gc.callbacks.remove(note)
    assert [number for number in collected if number < 7] == [3, 6]
    assert gc.isenabled()
