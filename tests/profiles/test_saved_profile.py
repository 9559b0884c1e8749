"""The profile of a run that is there runs the same again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gputui.core.secret_patterns import REDACTED
from gputui.metrics.source_report import LearnedForm, SourceReport
from gputui.profiles.profile_file import read_profile
from gputui.profiles.resolve import resolve
from gputui.profiles.saved_profile import saved_profile
from gputui.runs.learned_checkpoints import LEARNED
from gputui.runs.spec import CheckpointSpec, GpuRequest, MetricsSpec, RunSpec
from tests.tables import table

SCRIPT: dict[str, Any] = {"name": "a", "launcher": "python", "program": ("/w/train.py",), "workdir": "/w"}
PYTHON: dict[str, Any] = {"python": "/env/bin/python", "python_origin": "VIRTUAL_ENV"}
AUTO: dict[str, Any] = {"metrics": (MetricsSpec("auto"),)}
FULL: dict[str, Any] = {
    "launcher": "torchrun",
    "nproc": 4,
    "params": {"bs": 8, "lr": 0.1, "flag": True},
    "args": ("--bs", "{bs}", "[--flag", "{flag}]", "it's"),
    "roles": {"batch_size": "bs"},
    "scopes": {"bs": "global"},
    "checkpoints": CheckpointSpec("/w", LEARNED, ("--resume", "{checkpoint}")),
    "loss": "critic/q",
    "metrics": (
        MetricsSpec("csv", "/w/a.csv", step="epoch"),
        MetricsSpec("output", patterns=(r"s (?P<step>\d+) l (?P<l>.)",)),
    ),
    "env": {"A": "1"},
    "grace_seconds": 5.0,
}


@table(
    "fields",
    [
        {**SCRIPT, **PYTHON, **AUTO},
        {**SCRIPT, **PYTHON, "program": ("-m", "pkg.train"), "metrics": ()},
        {**AUTO, "name": "a", "launcher": "command", "program": ("make", "train"), "workdir": "/w"},
        {**SCRIPT, **PYTHON, **FULL},
    ],
)
def test_what_is_saved_runs_the_same(fields: dict[str, Any]) -> None:
    spec = RunSpec(**fields, gpus=GpuRequest())
    text = saved_profile(spec, spec.params, "mine", [])
    again = resolve(read_profile(text, Path("/elsewhere/mine.yaml")), environ={})
    for name in (
        "launcher", "program", "workdir", "python", "nproc", "gpus", "params", "env", "metrics", "loss", "checkpoints",
        "roles", "scopes", "recovery", "grace_seconds",
    ):  # fmt: skip
        assert getattr(again, name) == getattr(spec, name), name
    assert (again.args or ()) == (spec.args or ())


def test_secrets_and_what_was_learned() -> None:
    spec = RunSpec(**SCRIPT, **PYTHON, env={"TOKEN": REDACTED, "A": "1"}, args=("--key", "{key}"), gpus=GpuRequest())
    form = LearnedForm("step 1 loss \x1b[31m0.5", 3, ("loss",), r"step (?P<step>\d+) loss (?P<loss>\S+)")
    reports = [
        SourceReport("/log", "output", 9, ("loss",), None, (form,)),
        SourceReport("/w/a.csv", "csv", 5, ("acc",), "epoch"),
    ]
    text = saved_profile(spec, {"key": REDACTED}, "mine", reports)
    profile = read_profile(text, Path("/elsewhere/mine.yaml"))
    assert (profile.form.env, profile.form.params["key"].default) == ({"A": "1"}, None)
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert any("TOKEN, key" in line for line in comments)
    assert any("(?P<loss>" in line for line in comments) and any("/w/a.csv" in line for line in comments)
    assert REDACTED not in text and "\x1b" not in text
