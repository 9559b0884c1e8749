"""Two gloo ranks under torchrun. Each launch costs seconds, so one answers as many questions as it can."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.trainer.running import (
    SMALL,
    checkpoints,
    events,
    lines,
    settings,
    start_torchrun,
    step_lines,
    torchrun,
    train,
)
from trainer import distributed
from trainer.errors import SettingsError


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `ddp_checks` finds."""
    output = tmp_path_factory.mktemp("ddp")
    code, shown = torchrun("-m", "tests.trainer.ddp_checks", str(output))
    assert code == 0, shown
    result: dict[str, Any] = json.loads((output / "found.json").read_text())
    return result


def test_gradients_of_two_ranks_equal_one_process_on_the_joined_batch(found: dict[str, Any]) -> None:
    assert (found["backend"], found["size"]) == ("gloo", 2)
    assert found["identical"]
    assert found["difference"] < 1e-5
    assert found["loss_difference"] < 1e-6


def test_accumulation_exchanges_gradients_once_per_step(found: dict[str, Any]) -> None:
    assert found["rounds"]["1"] >= 1
    assert found["rounds"]["4"] == found["rounds"]["1"]


def test_in_an_epoch_no_sample_is_seen_twice(found: dict[str, Any]) -> None:
    first, second = (set(taken) for taken in found["taken"])
    assert len(first) == len(found["taken"][0]) == 29 * 8 * 3
    assert len(second) == len(found["taken"][1]) == 29 * 8 * 3
    assert not first & second


def test_resumed_ranks_go_on_bit_for_bit(found: dict[str, Any]) -> None:
    assert found["resumed_equals_straight"]
    assert found["ranks_have_own_randomness"]


def test_waiting_for_a_slow_rank_is_measured(found: dict[str, Any]) -> None:
    fast, slow = found["waits"]
    assert fast > 0.25 > 0.1 > slow


def test_exchanges(found: dict[str, Any]) -> None:
    assert found["sum"] == [3.0, 1.0]
    assert found["from_main"] == "rank 0"


def test_out_of_memory_then_a_smaller_batch_with_the_same_sum(tmp_path: Path) -> None:
    error_file = tmp_path / "error.json"
    fault = ("--inject", "oom@step=40")
    flags = ("-m", "trainer", "--output-dir", str(tmp_path), "--steps", "150", "--checkpoint-every", "10", *fault)
    code, shown = torchrun(*flags, error_file=error_file)
    assert code == 1
    message = json.loads(error_file.read_text())["message"]
    assert message["message"].startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate")
    assert "[rank0]: torch.OutOfMemoryError: CUDA out of memory" in shown
    assert checkpoints(tmp_path)[-1] == "step_00000030.pt"
    first = len(step_lines(tmp_path))

    code, shown = torchrun(*flags, "--resume", "auto", "--batch-size", "12", "--grad-accum", "4")
    assert code == 0, shown
    [end] = events(tmp_path, "end")
    assert end["test_accuracy"] >= 0.95
    steps = [line["step"] for line in step_lines(tmp_path)]
    assert steps[:first] == list(range(1, 40))
    assert steps[first:] == list(range(31, 151))
    assert step_lines(tmp_path)[-1]["samples"] == 150 * 16 * 3 * 2
    others = [line for line in lines(tmp_path) if line.get("rank") == 1]
    assert [line["step"] for line in others] == [*range(10, 40, 10), *range(40, 151, 10)]
    assert all(line["step_time"] > 0 and line["comm_time"] >= 0 for line in others)


def test_one_failing_rank_ends_the_run_and_is_named_as_the_cause(tmp_path: Path) -> None:
    error_file = tmp_path / "error.json"
    began = time.monotonic()
    flags = ("--output-dir", str(tmp_path), *SMALL, "--inject", "crash@step=5,rank=1")
    code, shown = torchrun("-m", "trainer", *flags, error_file=error_file)
    assert code == 1
    assert time.monotonic() - began < 60
    message = json.loads(error_file.read_text())["message"]["message"]
    assert message == "RuntimeError: injected crash at step 5 on rank 1"
    assert "rank      : 1 (local_rank: 1)" in shown.partition("Root Cause")[2]


def test_a_hung_rank_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    flags = ("--output-dir", str(tmp_path), *SMALL, "--timeout", "2", "--inject", "hang@step=5,rank=1")
    code, shown = torchrun("-m", "trainer", *flags, "--stop-timeout", "1")
    assert code == 1
    assert "Timed out waiting 2000ms" in shown
    assert "in _fire" in shown  # where the other one hung
    assert step_lines(tmp_path)[-1]["step"] == 4


def test_sigterm_to_torchrun_saves_on_all_ranks_and_one_rank_can_go_on(tmp_path: Path) -> None:
    flags = ("--output-dir", str(tmp_path), *SMALL, "--steps", "100000", "--checkpoint-every", "0")
    process = start_torchrun("-m", "trainer", *flags)
    metrics = tmp_path / "metrics.jsonl"
    try:
        wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 5, 60, "the first steps")
        process.send_signal(signal.SIGTERM)
        shown, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    [stop] = events(tmp_path, "stop")
    assert stop["reason"] == "SIGTERM"
    last = step_lines(tmp_path)[-1]["step"]
    assert checkpoints(tmp_path) == [f"step_{last:08d}.pt"], shown
    samples = step_lines(tmp_path)[-1]["samples"]
    assert train(tmp_path, "--steps", str(last + 3), "--resume", "auto") == 0
    assert [line["samples"] for line in step_lines(tmp_path)[-3:]] == [samples + 16, samples + 32, samples + 48]


def test_more_ranks_than_gpus_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    environment = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    with pytest.raises(SettingsError, match="2 ranks but only 1 visible GPUs: start 1 ranks, or use --device cpu"):
        distributed.join(settings(), environment)


@pytest.mark.parametrize(
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
    assert distributed.lost_a_peer(error) is expected
