"""What others wrote can be stored and shown, or is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gputui.runs.foreign_json import read_foreign_json
from tests.tables import table


@table("text, value", [
    ('{"at": NaN, "n": -Infinity, "m": 1e999}', {"at": None, "n": None, "m": None}),
    ('{"code": 99999999999999999999, "signal": -9, "ok": true}', {"code": None, "signal": -9, "ok": True}),
    (r'{"error": "\udcff.txt", "\ud800": 1}', {"error": "?.txt", "?": 1}), ("[1, [2, null]]", [1, [2, None]]),
])  # fmt: skip
def test_what_no_column_holds_is_unknown(tmp_path: Path, text: str, value: Any) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    assert read_foreign_json(path) == value


@table("text", ["", "{", "[" * 100_000, json.dumps("x" * 200)])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(ValueError):
        read_foreign_json(path, 200)
