"""Small files of runs: JSON of other programs, specifications, labels, names of checkpoints."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path, PurePath
from typing import Any

import pytest

from gputui.core.config import Workspace
from gputui.runs.checkpoint_names import step_in_name
from gputui.runs.foreign_json import read_foreign_json
from gputui.runs.labels import (
    LABELS_FILE,
    MOST_TAGS,
    LabelError,
    Labels,
    checked_labels,
    checked_name,
    read_labels,
    write_labels,
)
from gputui.runs.repository import fitting_name
from gputui.runs.spec import RunSpec
from gputui.runs.submission import submit_run
from gputui.store.runs import LONGEST_NOTE
from tests.homes import open_store
from tests.tables import table

MANY = [str(number) for number in range(MOST_TAGS + 1)]


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


def test_a_specification_of_which_no_agent_can_know_does_not_stay(workspace: Workspace) -> None:
    """A full disk, for example. It may hold secrets."""
    connection = open_store(workspace.database)
    connection.execute("PRAGMA query_only = ON")
    spec = RunSpec(name="a", launcher="command", program=("x",), workdir="/")
    with pytest.raises(sqlite3.OperationalError):
        submit_run(workspace, connection, spec, name=None, actor="me", now=0.0)
    assert list((workspace.state / "inbox").iterdir()) == []
    connection.close()


def test_labels_are_cleaned() -> None:
    assert checked_labels(" vit ", ["#b", "a", "b"], " first\n try ") == Labels("vit", ("a", "b"), "first try")
    assert checked_labels("vit", [], "x" * LONGEST_NOTE).note == "x" * LONGEST_NOTE


def test_a_secret_is_refused_without_a_word_of_it() -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz01234567"
    assert secret not in checked_labels("v", [], secret).note
    for name, tags in ((secret, []), ("vit", [secret])):
        with pytest.raises(LabelError) as caught:
            checked_labels(name, tags, "")
        assert secret[:12] not in str(caught.value)


def test_a_name_that_is_made_of_any_text_is_a_name() -> None:
    for text in ("very-long-name-" * 12, "x" * 59 + "-y", ".-", "vit base (v2)", "ü"):
        assert checked_name(fitting_name(text)) == fitting_name(text)


@table("name, tags", [
    ("", []), ("a b", []), ("../x", []), ("x" * 61, []), ("-x", []),
    ("vit", ["a b"]), ("vit", ["-a"]), ("vit", ["x" * 33]), ("vit", ["\x1b[1m"]), ("vit", MANY),
])  # fmt: skip
def test_names_and_tags_are_words_of_a_command_line(name: str, tags: list[str]) -> None:
    with pytest.raises(LabelError):
        checked_labels(name, tags, "")


def test_the_folder_keeps_them(tmp_path: Path) -> None:
    labels = Labels("vit", ("a",), "first try")
    write_labels(tmp_path, labels)
    assert read_labels(tmp_path) == labels
    for damaged in ("", "[]", '{"name": "a b", "tags": [], "note": ""}', '{"name": "vit"}'):
        (tmp_path / LABELS_FILE).write_text(damaged)
        assert read_labels(tmp_path) is None


@table("name, step", [
    ("step_00000040.pt", 40), ("epoch=3-step=400.ckpt", 400), ("epoch=7-step=900-v1.ckpt", 900),
    ("epoch=9-val_loss=0.12.ckpt", None), ("epoch=1-val_loss=0.93.ckpt", None), ("checkpoint-500", 500),
    ("checkpoint_epoch_12.pt", None), ("global_step500", 500), ("step_2000_fp16.pt", 2000), ("step_500_v2.pt", 500),
    ("iter_0001000-of-8.pt", 1000), ("rank_0_step_10.pt", 10), ("step_4.pt.gz", 4), ("model_500.pt", 500),
    ("0040.pt", 40), ("model_v2.pt", None), ("last-v1.ckpt", None), ("mp_rank_00_model_states.pt", None),
    ("resnet50-800.pt", None), ("last.pt", None), ("step_" + "9" * 30 + ".pt", None),
])  # fmt: skip
def test_steps_in_names(name: str, step: int | None) -> None:
    assert step_in_name(PurePath(name)) == step


def test_folders_of_a_name_tell_it_where_the_name_does_not() -> None:
    folder = PurePath("/runs/step_7")
    assert step_in_name(folder / "global_step500" / "mp_rank_00_model_states.pt", folder) == 500
    assert step_in_name(folder / "model.pt", folder) is None
