"""Faults on purpose: their notation, what each one does, and that it does it only as often as asked."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest
import torch

from tests.tables import table
from tests.texts import mentions
from trainer.errors import SettingsError
from trainer.faults import Injector, PlannedFault, parse


def test_notation() -> None:
    assert parse("crash@step=25,rank=1; slow@step=3,seconds=0.5,times=always; exit@step=2, code=3;") == [
        PlannedFault(kind="crash", step=25, rank=1),
        PlannedFault(kind="slow", step=3, seconds=0.5, times="always"),
        PlannedFault(kind="exit", step=2, code=3),
    ]
    assert parse("none") == parse("") == []
    for text in (
        "oom@step=4,rank=0,above=8,times=2",
        "slow@step=3,rank=1,seconds=0.5,times=always",
        "disk_full@step=3,rank=0",
    ):
        assert str(parse(text)[0]) == text


@table(
    ("text", "why"),
    [
        ("boom@step=4", ["unknown fault 'boom'"]),
        ("oom", ["step=", "required", "oom@step=40"]),
        ("oom@step=0", ["step=", "greater than or equal to 1"]),
        ("oom@step=4,code=3", ["step=, rank=, times=, above=", "'step=4,code=3'"]),
        ("oom@step=4,above", ["above=", "integer"]),
        ("slow@step=4,seconds=soon", ["seconds=", "number"]),
        ("oom@step=4,step=5", ["at most once"]),
        ("disk_full@step=4,rank=1", ["rank 0"]),
    ],
)
def test_wrong_notation_says_what_is_wrong(text: str, why: list[str]) -> None:
    with pytest.raises(SettingsError) as raised:
        parse(text)
    assert mentions(str(raised.value), f"--inject {text}: ", *why)


def test_out_of_memory_is_the_real_thing_and_only_above_a_batch_size(tmp_path: Path) -> None:
    injector = Injector(["oom@step=4,above=8,times=2"], 0, tmp_path)
    injector.before_step(4, 8)  # not due, so not counted
    injector.before_step(3, 16)
    for size in (16, 9):
        with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory\. Tried to allocate 2\.00 GiB\. GPU 0"):
            injector.before_step(4, size)
    injector.before_step(4, 16)


def test_crash_exit_nan_and_slow(tmp_path: Path) -> None:
    faults = ["crash@step=1", "exit@step=2,code=3", "nan@step=3", "slow@step=5,seconds=0.1"]
    injector = Injector(faults, 0, tmp_path)
    with pytest.raises(RuntimeError, match="injected crash at step 1 on rank 0"):
        injector.before_step(1, 16)
    with pytest.raises(SystemExit) as left:
        injector.before_step(2, 16)
    assert left.value.code == 3
    assert [injector.before_step(step, 16) for step in (3, 4)] == [True, False]
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
