"""A run that trains and has no metrics says so."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.health.setup_checks import PRINTED_LINES, SetupChecks, makes_group, missing_metrics
from gputui.core.config import Workspace
from gputui.recovery.watch.attempt import AttemptWatch
from gputui.recovery.watch.silence import StepPace, StepProgress
from gputui.runs.identity import ProcessIdentity
from gputui.runs.processes import AttemptProcess
from gputui.runs.spec import CheckpointSpec, MetricsSpec, RunSpec
from gputui.store.attempts import Attempt
from tests.conftest import wait_until
from tests.tables import table

BEGAN = 1_000.0


@table("connected, text, found", [
    (False, "init_process_group()", ["no_group"]), (True, "init_process_group()", []), (False, "", []),
])  # fmt: skip
def test_ranks_that_train_alone(
    tmp_path: Path, connection: sqlite3.Connection, workspace: Workspace, monkeypatch: pytest.MonkeyPatch,
    connected: bool, text: str, found: list[str],
) -> None:  # fmt: skip
    (tmp_path / "a.py").write_text(text)
    monkeypatch.setattr("gputui.agent.health.setup_checks.is_connected", lambda pid: connected)
    clock = [0.0]
    context = AgentContext.of(connection, workspace, wake=lambda: None, monotonic=lambda: clock[0])
    checks, described = SetupChecks(), replace(spec("torchrun"), workdir=str(tmp_path))
    watch = AttemptWatch(Attempt("r", 1, "running", {}, (), {}, BEGAN), StepProgress(StepPace(), lines=1), 0.0)
    ranks = [AttemptProcess(ProcessIdentity(pid, 1, "boot"), pid, 2) for pid in range(2)]
    seen: list[str] = []
    for clock[0] in range(0, 90, 15):
        for _ in range(2):
            seen += [one.kind for one in checks.look(context, watch, described, lambda: ranks, seen)]
            wait_until(lambda: not context.jobs.is_busy, what="the script")
    assert seen == found


def spec(launcher: str, *sources: MetricsSpec) -> RunSpec:
    checkpoints = CheckpointSpec("{run_dir}/out", "ckpt-*", ())
    return RunSpec("a", launcher, ("a.py",), "/", "/p", metrics=sources, checkpoints=checkpoints)


@table("text, found", [
    ("dist.init_process_group()", True), ("x = DistributedDataParallel(x)", True), ("", False), (None, False),
    ("# no init_process_group here", False),
])  # fmt: skip
def test_a_script_that_makes_a_process_group(tmp_path: Path, text: str | None, found: bool) -> None:
    if text is not None:
        (tmp_path / "a.py").write_text(f"import torch\n{text}\n")
    assert makes_group(replace(spec("torchrun"), workdir=str(tmp_path))) == found


@table(
    "launcher, name, end", [("python", "output.log", "\r\n"), ("torchrun", "ranks/r_1/attempt_0/0/stderr.log", "\r")]
)
def test_so_many_printed_lines(tmp_path: Path, launcher: str, name: str, end: str) -> None:
    path = tmp_path / "attempts" / "1" / name
    path.parent.mkdir(parents=True)
    described = spec(launcher, MetricsSpec("output", None, ("step (?P<step>x)",)))
    path.write_bytes(f"a log line{end}".encode() * (PRINTED_LINES - 1))
    assert missing_metrics(described, tmp_path, 1, BEGAN) is None
    path.write_bytes(f"a log line{end}".encode() * PRINTED_LINES)
    text = missing_metrics(described, tmp_path, 1, BEGAN)
    assert text is not None and "patterns" in text


def test_the_first_checkpoint_of_the_attempt(tmp_path: Path) -> None:
    described = spec("python", MetricsSpec("jsonl", "{run_dir}/metrics.jsonl"))
    saved = tmp_path / "out" / "ckpt-1"
    saved.parent.mkdir()
    saved.touch()
    os.utime(saved, (BEGAN - 1, BEGAN - 1))
    assert missing_metrics(described, tmp_path, 1, BEGAN) is None, "one of an earlier attempt"
    os.utime(saved, (BEGAN + 1, BEGAN + 1))
    text = missing_metrics(described, tmp_path, 1, BEGAN)
    assert text is not None and "ckpt-1" in text and f"{tmp_path}/metrics.jsonl" in text
