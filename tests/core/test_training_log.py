"""`gputui.log`: the line that a training script writes."""

from __future__ import annotations

import json
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from gputui.core.training_log import RESERVED_NAMES, log
from gputui.metrics.contract import ParsedLine, parse_line


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPUTUI_METRICS", str(tmp_path / "metrics.jsonl"))
    return tmp_path / "metrics.jsonl"


def test_a_line_keeps_the_contract(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log({"loss": torch.tensor(0.5), "lr": numpy.float32(0.25), "epoch": 3, "nan": math.nan}, step=numpy.int64(7))
    monkeypatch.setenv("RANK", "2")
    log({"loss": 1}, step=8)
    first, second = (parse_line(line) for line in file.read_bytes().splitlines())
    assert isinstance(first, ParsedLine)
    assert isinstance(second, ParsedLine)
    assert (first.step, first.rank, second.rank) == (7, None, 2)
    assert {name: first.values[name] for name in ("loss", "lr", "epoch", "nan")} == {
        "loss": 0.5, "lr": 0.25, "epoch": 3, "nan": "NaN",
    }  # fmt: skip
    assert first.time is not None
    assert file.stat().st_mode & 0o777 == 0o600


def test_threads_do_not_mix_their_lines(file: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for step in range(400):
            pool.submit(log, {f"metric_{place}": step for place in range(20)}, step=step)
    assert sorted(json.loads(line)["step"] for line in file.read_text().splitlines()) == list(range(400))


def test_nothing_is_raised_into_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTUI_METRICS", str(tmp_path / "none" / "metrics.jsonl"))
    with pytest.warns(RuntimeWarning, match=r"metrics\.jsonl"):
        log({"loss": 0.5}, step=1)
    monkeypatch.delenv("GPUTUI_METRICS")
    with warnings.catch_warnings(action="error"):
        log({"loss": 0.5}, step=1)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([1], 1),
        ({"loss": "0.5"}, 1),
        ({"loss": None}, 1),
        ({1: 0.5}, 1),
        ({"loss": torch.zeros(2)}, 1),
        ({"loss": 0.5}, 1.5),
    ],
)
def test_a_wrong_type_is_an_error(values: Any, step: Any, file: Path) -> None:
    with pytest.raises(TypeError):
        log(values, step=step)
    assert not file.exists()


@pytest.mark.parametrize(
    ("values", "step"),
    [*(({"loss": 0.5, name: 7}, 1) for name in sorted(RESERVED_NAMES)), ({"loss": 0.5}, -1), ({"loss": 0.5}, 2**53)],
)
def test_what_the_contract_rejects_or_keeps_is_an_error(values: Any, step: int, file: Path) -> None:
    with pytest.raises(ValueError, match=str(step) if len(values) == 1 else "time"):
        log(values, step=step)
    assert not file.exists()
