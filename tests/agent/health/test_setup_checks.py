"""A run that trains and has no metrics says so."""

from __future__ import annotations

import os
from pathlib import Path

from gputui.agent.health.watched import PRINTED_LINES, missing_metrics
from gputui.runs.spec import CheckpointSpec, MetricsSpec, RunSpec
from tests.tables import table

BEGAN = 1_000.0


def spec(launcher: str, *sources: MetricsSpec) -> RunSpec:
    checkpoints = CheckpointSpec("{run_dir}/out", "ckpt-*", ())
    return RunSpec("a", launcher, ("a.py",), "/", "/p", metrics=sources, checkpoints=checkpoints)


@table(
    "launcher, name, end", [("python", "output.log", "\r\n"), ("torchrun", "ranks/r_1/attempt_0/0/stderr.log", "\r")]
)
def test_so_many_printed_lines(tmp_path: Path, launcher: str, name: str, end: str) -> None:
    path = tmp_path / "attempts" / "1" / "nodes" / "0" / name
    path.parent.mkdir(parents=True)
    described = spec(launcher, MetricsSpec("output", path=None, patterns=("step (?P<step>x)",)))
    path.write_bytes(f"a log line{end}".encode() * (PRINTED_LINES - 1))
    assert missing_metrics(described, tmp_path, 1, BEGAN) is None
    path.write_bytes(f"a log line{end}".encode() * PRINTED_LINES)
    text = missing_metrics(described, tmp_path, 1, BEGAN)
    assert text is not None
    assert "patterns" in text


def test_the_first_checkpoint_of_the_attempt(tmp_path: Path) -> None:
    described = spec("python", MetricsSpec("jsonl", "{run_dir}/metrics.jsonl"))
    saved = tmp_path / "out" / "ckpt-1"
    saved.parent.mkdir()
    saved.touch()
    os.utime(saved, (BEGAN - 1, BEGAN - 1))
    assert missing_metrics(described, tmp_path, 1, BEGAN) is None, "one of an earlier attempt"
    os.utime(saved, (BEGAN + 1, BEGAN + 1))
    text = missing_metrics(described, tmp_path, 1, BEGAN)
    assert text is not None
    assert "ckpt-1" in text
    assert f"{tmp_path}/metrics.jsonl" in text
