"""Faults on purpose: their notation, what each one does, and that it does it only as often as asked."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest
import torch

from tests.tables import table
from trainer.errors import SettingsError
from trainer.faults import ALWAYS, Injector, PlannedFault, parse


def test_notation() -> None:
    assert parse("oom@step=40") == [PlannedFault("oom", 40)]
    assert parse("crash@step=25,rank=1; slow@step=3,seconds=0.5,times=always;") == [
        PlannedFault("crash", 25, rank=1),
        PlannedFault("slow", 3, seconds=0.5, times=ALWAYS),
    ]
    assert parse("exit@step=2,code=3,times=2") == [PlannedFault("exit", 2, code=3, times=2)]
    assert parse("none") == parse("") == []


@table(
    ("text", "why"),
    [
        ("boom@step=4", "unknown fault 'boom'"),
        ("oom", "the step is missing, as in oom@step=40"),
        ("oom@step=0", "step= must be a whole number of at least 1, got '0'"),
        ("oom@step=4,step=5", "step= is there twice"),
        ("oom@step=4,code=3", "expected step=, rank=, times=, above= after the @, got 'code=3'"),
        ("slow@step=4,seconds=soon", "seconds= must be a number of at least 0, got 'soon'"),
        ("oom@step=4,above=few", "above= must be a whole number of at least 0, got 'few'"),
        ("nan@step=4,above=2", "expected step=, rank=, times= after the @, got 'above=2'"),
        ("disk_full@step=4,rank=1", "checkpoints are written by rank 0"),
    ],
)
def test_wrong_notation_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse(text)
    assert str(raised.value).startswith(f"--inject {text}: ")
    assert why in str(raised.value)


def test_oom_is_the_real_thing(tmp_path: Path) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory\. Tried to allocate 2\.00 GiB\. GPU 0 has"):
        Injector(["oom@step=4"], 0, tmp_path).before_step(4, 16)


def test_oom_above_a_batch_size_ends_when_batches_are_smaller(tmp_path: Path) -> None:
    injector = Injector(["oom@step=4,above=8,times=always"], 0, tmp_path)
    for size, fires in [(16, True), (12, True), (9, True), (8, False), (1, False)]:
        injector.before_step(3, size)
        if fires:
            with pytest.raises(torch.OutOfMemoryError):
                injector.before_step(4, size)
        else:
            injector.before_step(4, size)
    once = Injector(["oom@step=4,above=8"], 0, tmp_path)
    once.before_step(4, 8)  # not due, so not counted
    with pytest.raises(torch.OutOfMemoryError):
        once.before_step(4, 9)
    once.before_step(4, 9)


def test_crash_exit_nan_and_slow(tmp_path: Path) -> None:
    faults = ["crash@step=1", "exit@step=2,code=3", "nan@step=3", "slow@step=5,seconds=0.1"]
    injector = Injector(faults, 0, tmp_path)
    with pytest.raises(RuntimeError, match="injected crash at step 1 on rank 0"):
        injector.before_step(1, 16)
    with pytest.raises(SystemExit) as left:
        injector.before_step(2, 16)
    assert left.value.code == 3
    assert injector.before_step(3, 16) is True
    assert injector.before_step(4, 16) is False
    began = time.monotonic()
    assert injector.before_step(5, 16) is False
    assert time.monotonic() - began >= 0.1


def test_a_full_disk_waits_for_a_checkpoint(tmp_path: Path) -> None:
    injector = Injector(["disk_full@step=3"], 0, tmp_path)
    injector.before_step(3, 16)
    injector.before_checkpoint(2, tmp_path / "x.pt")
    with pytest.raises(OSError, match="No space left on device") as raised:
        injector.before_checkpoint(5, tmp_path / "x.pt")
    assert raised.value.errno == errno.ENOSPC
    injector.before_checkpoint(10, tmp_path / "x.pt")


@table(("times", "expected"), [("", 1), (",times=2", 2), (",times=always", 4)])
def test_it_fires_so_often_per_directory_over_restarts(times: str, expected: int, tmp_path: Path) -> None:
    fired = [Injector([f"nan@step=7{times}"], 0, tmp_path / "faults").before_step(7, 16) for _ in range(4)]
    assert fired == [True] * expected + [False] * (4 - expected)
