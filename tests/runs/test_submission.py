"""Handing a run to the agent."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from gputui.config import Workspace
from gputui.runs.spec import RunSpec, SpecError, parse_spec
from gputui.runs.submission import read_spec, submit_run, write_private, write_spec
from gputui.store import json_columns
from tests.stores import open_store


def test_a_specification_of_which_no_agent_can_know_does_not_stay(workspace: Workspace) -> None:
    """A full disk, for example. It may hold secrets."""
    connection = open_store(workspace.database)
    connection.execute("PRAGMA query_only = ON")
    spec = RunSpec(name="a", launcher="command", program=("x",), workdir="/")
    with pytest.raises(sqlite3.OperationalError):
        submit_run(workspace, connection, spec, name=None, actor="me", now=0.0)
    assert list((workspace.state / "inbox").iterdir()) == []
    connection.close()


def test_what_is_nested_too_deeply_is_no_specification(tmp_path: Path) -> None:
    nested = "[" * 100_000
    (tmp_path / "spec.json").write_text(nested)
    with pytest.raises(SpecError):
        read_spec(tmp_path / "spec.json")
    with pytest.raises(SpecError):
        parse_spec(nested)
    assert json_columns.mapping(nested) is json_columns.UNREADABLE


def test_a_pipe_in_place_of_a_specification_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "spec.json")
    with pytest.raises(SpecError):
        read_spec(tmp_path / "spec.json")


def test_a_specification_keeps_names_that_are_no_utf_8(tmp_path: Path) -> None:
    spec = RunSpec(name="a", launcher="command", program=("x",), workdir="/data-\udcff")
    write_spec(tmp_path / "spec.json", spec)
    assert read_spec(tmp_path / "spec.json") == spec


def test_a_pipe_where_a_record_is_to_be_written_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "attempt.json.tmp")
    with pytest.raises(OSError):
        write_private(tmp_path / "attempt.json", {})
