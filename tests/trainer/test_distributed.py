"""Whole runs and single steps of several ranks; under torchrun where the end of a process is what it is about."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

from tests.conftest import wait_until
from tests.tables import table
from tests.texts import mentions
from tests.trainer.comparing import same
from tests.trainer.ranks import Ranks
from tests.trainer.running import (
    PATIENCE_SECONDS,
    SMALL,
    checkpoints,
    events,
    settings,
    start_torchrun,
    step_lines,
    torchrun,
    train,
    train_and_crash,
    train_on,
)
from trainer.checkpoints import existing, load, random_state
from trainer.errors import SettingsError
from trainer.session import PhaseSession, TrainingProgress
from trainer.world import World, join, lost_a_peer


def random_state_after(world: World, output: Path, *flags: str) -> list[int]:
    train_on(world, output, *flags)
    state: list[int] = torch.get_rng_state().tolist()
    return state


def test_two_resumed_halves_are_one_straight_run_bit_for_bit(two_ranks: Ranks, tmp_path: Path) -> None:
    flags = ("--steps", "20", "--dropout", "0.3", "--validate-every", "0", "--checkpoint-every", "10")
    states = two_ranks.run(random_state_after, tmp_path / "straight", *flags)
    two_ranks.run(train_and_crash, tmp_path / "halves", 11, *flags)
    again = two_ranks.run(random_state_after, tmp_path / "halves", *flags, "--resume", "auto")
    straight, halves = (load(existing(tmp_path / name / "checkpoints")[0]) for name in ("straight", "halves"))
    assert straight["step"] == halves["step"] == 20
    for part in ("model", "optimizer", "random", "samples", "metrics"):
        assert same(straight[part], halves[part]), part
    assert again == states
    assert states[0] != states[1]  # every rank has its own dropout


def number_after_resume(world: World, layers_shared_by: int) -> float:
    """The first number that a rank draws once it has a state that four ranks saved."""
    with PhaseSession(settings(), world, 1, TrainingProgress()) as session:
        state = session.state()
        saved = []
        for rank in range(4):
            torch.manual_seed(rank // layers_shared_by)
            saved.append(random_state(world.device))
        batch = {**state["batch"], "ranks": 4 // layers_shared_by}
        session.load({**state, "random": saved, "batch": batch})
        return float(torch.rand(()))


@table("layers_shared_by", [1, 2])
def test_ranks_go_on_with_numbers_of_ranks_that_took_other_samples(two_ranks: Ranks, layers_shared_by: int) -> None:
    expected = [float(torch.rand((), generator=torch.Generator().manual_seed(seed))) for seed in range(2)]
    assert two_ranks.run(number_after_resume, layers_shared_by) == expected


@pytest.mark.parametrize("parallel", ["ddp", pytest.param("zero1", marks=pytest.mark.long)])
def test_all_ranks_step_down_together_where_one_runs_out_of_memory(
    parallel: str, two_ranks: Ranks, tmp_path: Path
) -> None:
    flags = ("--steps", "8", "--parallel", parallel, "--batch-size", "16", "--grad-accum", "3")
    fault = "oom@step=1,above=12,rank=1,times=always;oom@step=5,above=8,rank=0,times=always"
    two_ranks.run(train_on, tmp_path, *flags, "--oom-retries", "5", "--inject", fault)
    reduced = [(event["step"], event["batch_size"], event["grad_accum"]) for event in events(tmp_path, "batch_reduced")]
    assert reduced == [(1, 12, 4), (5, 8, 6)]
    steps = step_lines(tmp_path)
    assert [(line["step"], line["samples"]) for line in steps] == [(step, step * 16 * 3 * 2) for step in range(1, 9)]
    # The same samples in smaller parts: only dropout is drawn anew.
    two_ranks.run(train_on, tmp_path / "plain", *flags)
    assert steps[-1]["loss"] == pytest.approx(step_lines(tmp_path / "plain")[-1]["loss"], rel=0.05)
    # A later phase begins with what fitted.
    phases = json.dumps([{"name": "a", "steps": 4}, {"name": "b", "steps": 4, "batch_size": 32, "grad_accum": 3}])
    phased = (f"--phases={phases}", "--oom-retries", "1", "--inject", fault.partition(";")[0])
    two_ranks.run(train_on, tmp_path / "phases", *flags, *phased)
    [begun] = events(tmp_path / "phases", "phase")
    assert (begun["batch_size"], begun["grad_accum"]) == (12, 8)


@pytest.mark.long
def test_one_failing_rank_ends_the_run_and_is_named_as_the_cause(tmp_path: Path) -> None:
    error_file = tmp_path / "error.json"
    flags = ("--output-dir", str(tmp_path), *SMALL, "--inject", "crash@step=5,rank=1")
    code, output = torchrun("-m", "trainer", *flags, error_file=error_file)
    assert code == 1
    message = json.loads(error_file.read_text())["message"]["message"]
    assert mentions(message, "RuntimeError: ", "step 5", "rank 1")
    assert "(local_rank: 1)" in output.partition("Root Cause")[2]


@pytest.mark.long
def test_a_hung_rank_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    """From the second step on, the timeout is not that of the start."""
    flags = ("--output-dir", str(tmp_path), *SMALL, "--timeout", "20", "--inject", "hang@step=5,rank=1")
    code, output = torchrun("-m", "trainer", *flags, "--stop-timeout", "1", "--start-timeout", "600")
    assert code == 1
    # Whichever collective gives up first closes the connection of the others.
    assert "Timed out waiting 20000ms" in output or "Application timeout" in output
    assert "in _fire" in output  # where the other one hung
    assert step_lines(tmp_path)[-1]["step"] == 4


@pytest.mark.long
def test_sigterm_to_torchrun_saves_on_all_ranks_and_one_rank_can_go_on(tmp_path: Path) -> None:
    flags = ("--output-dir", str(tmp_path), *SMALL, "--steps", "100000", "--checkpoint-every", "0")
    process = start_torchrun("-m", "trainer", *flags)
    metrics = tmp_path / "metrics.jsonl"
    try:
        wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 5, PATIENCE_SECONDS)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    [stop] = events(tmp_path, "stop")
    assert stop["reason"] == "SIGTERM"
    last = step_lines(tmp_path)[-1]["step"]
    assert checkpoints(tmp_path) == [f"step_{last:08d}.pt"], output
    samples = step_lines(tmp_path)[-1]["samples"]
    assert train(tmp_path, "--steps", str(last + 3), "--resume", "auto") == 0
    assert [line["samples"] for line in step_lines(tmp_path)[-3:]] == [samples + 16, samples + 32, samples + 48]


def test_more_ranks_than_gpus_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    environment = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    with pytest.raises(SettingsError, match="2 ranks but only 1 visible GPUs: start 1 ranks, or use --device cpu"):
        join(settings(), environment)


@table(
    ("error", "expected"),
    [
        (RuntimeError("[..pair.cc:553] Connection closed by peer [127.0.0.1]:9090."), True),
        (RuntimeError("Read error [127.0.0.1]:20400: Connection reset by peer"), True),
        (RuntimeError("Timed out waiting 10000ms for recv operation to complete"), False),
        (RuntimeError("injected crash"), False),
        (ConnectionResetError("Connection reset by peer"), False),
    ],
)
def test_losing_a_peer_is_told_from_failing(error: Exception, expected: bool) -> None:
    assert lost_a_peer(error) is expected


def test_the_largest_batch_that_fits_is_found_by_all_ranks_alike(two_ranks: Ranks, tmp_path: Path) -> None:
    fault = ("--inject", "oom@step=1,above=23,rank=1,times=always")
    flags = ("--steps", "3", "--batch-size", "auto", "--max-batch-size", "64", "--grad-accum", "2")
    two_ranks.run(train_on, tmp_path, *flags, *fault)
    [event] = events(tmp_path, "batch_found")
    assert 20 <= event["batch_size"] <= 23
    assert step_lines(tmp_path)[-1]["samples"] == 3 * 2 * 2 * event["batch_size"]
    fixed = tmp_path / "fixed"
    two_ranks.run(train_on, fixed, "--steps", "3", "--batch-size", str(event["batch_size"]), "--grad-accum", "2")
    # Searching leaves no trace in what is learnt.
    assert [line["loss"] for line in step_lines(fixed)] == [line["loss"] for line in step_lines(tmp_path)]


FAULTY = """
import contextlib, os, sys
import torch
from trainer.__main__ import main
from trainer.parallel.ddp import Ddp

exchanging = Ddp.exchanging
steps = 0

@contextlib.contextmanager
def faulty(self, last):
    global steps
    with exchanging(self, last):
        yield
    steps += last
    if steps == 4 and last and os.environ["RANK"] == "1":
        gradient = list(self.names)[2].grad.flatten()
        gradient[0] = torch.nextafter(gradient[0], gradient[0] + 1)
        list(self.names)[2].grad.copy_(gradient.view_as(list(self.names)[2]))

Ddp.exchanging = faulty
sys.exit(main())
"""


def test_a_rank_with_another_gradient_ends_the_run_before_the_step_is_made(tmp_path: Path) -> None:
    script = tmp_path / "faulty.py"
    script.write_text(FAULTY)
    flags = ("--steps", "8", "--checkpoint-every", "1", "--check-gradients", "2")
    code, output = torchrun(str(script), "--output-dir", str(tmp_path), *SMALL, *flags)
    assert code == 1
    names = list(load(existing(tmp_path / "checkpoints")[0])["optimizer"])
    said = f"gradients of {names[2]} differ between ranks at step 4: rank 1 from rank 0"
    assert f"trainer: {said}" in output or f"rank 1: {said}" in output
    assert [event["step"] for event in events(tmp_path, "gradients_checked")] == [2]
    (event,) = events(tmp_path, "gradients_differ")
    assert (event["step"], event["parameter"], event["ranks"]) == (4, names[2], "rank 1 from rank 0")
    assert checkpoints(tmp_path)[-1] == "step_00000003.pt"


def test_gradients_that_ranks_should_have_alike_are_alike(four_ranks: Ranks, tmp_path: Path) -> None:
    for name, way in (("ddp", ()), ("zero1", ()), ("fsdp", ("--shard-ranks", "2"))):
        four_ranks.run(train_on, tmp_path / name, "--steps", "3", "--parallel", name, *way, "--check-gradients", "1")
        assert [event["ranks"] for event in events(tmp_path / name, "gradients_checked")] == [4, 4, 4]
