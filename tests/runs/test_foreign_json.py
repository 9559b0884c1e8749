"""What others wrote can be stored and shown, or is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gputui.runs.foreign_json import read_foreign_json, time_in


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"at": NaN, "n": -Infinity, "m": 1e999}', {"at": None, "n": None, "m": None}),
        ('{"code": 99999999999999999999, "signal": -9, "ok": true}', {"code": None, "signal": -9, "ok": True}),
        (r'{"error": "\udcff.txt", "\ud800": 1}', {"error": "?.txt", "?": 1}),
        ("[1, [2, null]]", [1, [2, None]]),
    ],
)
def test_what_no_column_holds_is_unknown(tmp_path: Path, text: str, value: Any) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    assert read_foreign_json(path) == value


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, json.dumps("x" * 200)])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(ValueError):
        read_foreign_json(path, 200)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "record.json")
    with pytest.raises(OSError, match="not a regular file"):
        read_foreign_json(tmp_path / "record.json")


def test_a_time_can_be_written_as_a_date() -> None:
    assert time_in(1_790_000_000) == 1_790_000_000.0
    assert [time_in(value) for value in (None, True, "5", -1, 0, 1e300)] == [None] * 6
