"""A run that trains and has no metrics says so."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gputui.agent.health.unread_metrics import PRINTED_LINES, missing_metrics, trace_of
from gputui.metrics.intake_words import intake_words
from gputui.runs.spec import CheckpointSpec, MetricsSpec, RunSpec
from gputui.store.metrics.intake import intake
from tests.conftest import wait_until
from tests.machine import Machine

BEGAN = 1_000.0


def spec(launcher: str, *sources: MetricsSpec) -> RunSpec:
    return RunSpec(
        name="a",
        launcher=launcher,
        program=("a.py",),
        workdir="/",
        python="/p",
        metrics=sources,
        checkpoints=CheckpointSpec("{run_dir}/out", "ckpt-*", ()),
    )


@pytest.mark.parametrize(
    ("launcher", "name"), [("python", "output.log"), ("torchrun", "ranks/r_1/attempt_0/0/stderr.log")]
)
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_so_many_printed_lines(tmp_path: Path, launcher: str, name: str, end: str) -> None:
    path = tmp_path / "attempts" / "1" / name
    path.parent.mkdir(parents=True)
    described = spec(launcher, MetricsSpec("output", None, ("step (?P<step>x)",)))
    path.write_bytes(f"a log line{end}".encode() * (PRINTED_LINES - 1))
    assert missing_metrics(trace_of(described, tmp_path, 1, BEGAN)) is None
    path.write_bytes(f"a log line{end}".encode() * PRINTED_LINES)
    text = missing_metrics(trace_of(described, tmp_path, 1, BEGAN))
    assert text is not None and "patterns" in text


def test_the_first_checkpoint_of_the_attempt(tmp_path: Path) -> None:
    described = spec("python", MetricsSpec("jsonl", "{run_dir}/metrics.jsonl"))
    saved = tmp_path / "out" / "ckpt-1"
    saved.parent.mkdir()
    saved.touch()
    os.utime(saved, (BEGAN - 1, BEGAN - 1))
    assert missing_metrics(trace_of(described, tmp_path, 1, BEGAN)) is None, "one of an earlier attempt"
    os.utime(saved, (BEGAN + 1, BEGAN + 1))
    text = missing_metrics(trace_of(described, tmp_path, 1, BEGAN))
    assert text is not None and "ckpt-1" in text and f"{tmp_path}/metrics.jsonl" in text


def test_it_is_shown_once_and_until_there_are_lines(machine: Machine) -> None:
    (machine.folder / "chatty.py").write_text(
        "import time\nfor n in range(1000):\n    print('epoch one', n)\ntime.sleep(60)\n"
    )
    head = f"script: chatty.py\nlauncher: python\npython: {sys.executable}\ngpus: 0\n"
    pattern = r"{source: output, patterns: ['step (?P<step>\d+) loss (?P<loss>\S+)']}"
    profile = machine.profile("chatty", f"{head}metrics: {pattern}\n")
    machine.gputui("run", profile)
    rows = "SELECT count(*) FROM observations WHERE kind = 'no_metrics'"
    wait_until(lambda: machine.rows(rows) == [(1,)], 30, "the observation")
    assert "no metrics" in machine.gputui("ps")
    assert "200 lines" in machine.gputui("show", "chatty-1")
    events = machine.rows("SELECT severity FROM events WHERE kind = 'observation' AND key = 'no_metrics'")
    assert events == [("warning",)]
    with closing(sqlite3.connect(machine.workspace.database)) as connection, connection:
        connection.execute("UPDATE metric_sources SET line_count = 1")
        known = intake(connection, "chatty-1")
        assert known.no_metrics is None and intake_words(known) is None
    machine.gputui("stop", "chatty-1", "--now")


def test_a_pipe_in_place_of_the_output_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    os.mkfifo(tmp_path / "attempts" / "1" / "output.log")
    described = spec("python", MetricsSpec("output", None, ("step (?P<step>x)",)))
    assert missing_metrics(trace_of(described, tmp_path, 1, BEGAN)) is None
