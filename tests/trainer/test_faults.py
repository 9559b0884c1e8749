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
from trainer.faults import Injector, parse


def test_notation() -> None:
    first, second = parse("slow@step=3,seconds=0.5,times=always; exit@step=2, code=3, rank=1;none;")
    assert (first.kind, first.step, first.rank, first.seconds, first.times) == ("slow", 3, 0, 0.5, "always")
    assert (second.kind, second.step, second.rank, second.code, second.times) == ("exit", 2, 1, 3, 1)
    assert second.text == "exit@step=2,code=3,rank=1"
    assert parse(second.text) == [second]
    assert parse("none") == parse("") == []


@table(
    ("text", "why"),
    [
        ("boom@step=4", ["unknown fault 'boom'"]),
        ("oom", ["step=", "required", "oom@step=40"]),
        ("oom@step=0", ["step=", "greater than or equal to 1"]),
        ("oom@step=4,code=3", ["oom takes step=, times=, rank=, above="]),
        ("oom@step=4,above", ["above=", "integer"]),
        ("slow@step=4,seconds=soon", ["seconds=", "number"]),
        ("disk_full@step=4,rank=1", ["disk_full takes step=, times="]),
    ],
)
def test_wrong_notation_says_what_is_wrong(text: str, why: list[str]) -> None:
    with pytest.raises(SettingsError) as raised:
        parse(text)
    assert mentions(str(raised.value), f"--inject {text}: ", *why)


def test_what_faults_do_at_a_step(tmp_path: Path) -> None:
    faults = ["oom@step=4,above=8,times=2", "crash@step=1", "exit@step=2,code=3; nan@step=3", "slow@step=5,seconds=0.1"]
    injector = Injector(faults, 0, tmp_path)
    injector.before_step(4, 8)  # not due, so not counted
    for size in (16, 9):
        with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory\. Tried to allocate 2\.00 GiB\. GPU 0"):
            injector.before_step(4, size)
    injector.before_step(4, 16)
    with pytest.raises(RuntimeError, match="injected crash at step 1 on rank 0"):
        injector.before_step(1, 16)
    with pytest.raises(SystemExit) as exit_info:
        injector.before_step(2, 16)
    assert exit_info.value.code == 3
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
