"""The profile of a run that is there runs the same again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gputui.core.secret_patterns import REDACTED
from gputui.metrics.source_report import LearnedForm, SourceReport
from gputui.profiles.params import UNDECIDED
from gputui.profiles.profile_file import read_profile
from gputui.profiles.resolve import resolve
from gputui.profiles.saved_profile import SavedHistory, saved_profile
from gputui.profiles.targets import stored_target
from gputui.runs.command import expand
from gputui.runs.learned_checkpoints import LEARNED
from gputui.runs.redaction import redact_spec
from gputui.runs.spec import BestMetric, CheckpointSpec, GpuRequest, MetricsSpec, Phase, RunSpec, Scalar
from gputui.store.attempts import Attempt
from gputui.store.run_history import DecisionView
from gputui.store.run_states import RunState
from gputui.store.runs import Run
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
# Keys that FULL lacks.
REST: dict[str, Any] = {
    "params": {"lr": 0.1, "model": "a"},
    "gpus": GpuRequest(2, memory_bytes=10 << 30, min_count=1, beside_desktop=True),
    "metrics": (MetricsSpec("auto"), MetricsSpec("csv", "/w/a.csv")),
    "best": BestMetric("val/acc", "max"),
    "checkpoints": CheckpointSpec("/w", "*.pt"),
    "recovery": {"policy": "standard", "max_attempts": 3, "hang_after": 90},
    "gates": {"gpu_utilization": 70.0},
    "sinks": {"jsonl": "/w/{run_id}.jsonl"},
    "priority": -3,
    "time_limit_seconds": 1_209_600.0,
    "visible": "index",
    "multiples": {},
}
NO_HISTORY = SavedHistory()


def saved(spec: RunSpec, params: Mapping[str, Scalar] | None = None, history: SavedHistory = NO_HISTORY) -> str:
    """The profile of a run that ended with these parameters, as of its first attempt."""
    text = json.dumps(spec.to_json())
    run = Run(
        "a-1",
        1,
        "a",
        profile="a",
        state=RunState.FAILED,
        attempt=1,
        params=spec.params if params is None else params,
        spec_json=text,
        created_at=0.0,
    )
    return saved_profile(run, "mine", history)


PHASES = (Phase(10, {"lr": 0.1}), Phase(None, {"lr": 0.5, "model": "b"}))


def attempt(number: int, **params: Scalar) -> Attempt:
    return Attempt("a-1", number, "failed", params=params, gpus=(), launch={}, created_at=0.0)


def decision(number: int, verdict: str, **params: Scalar) -> DecisionView:
    return DecisionView(number, number, "a-1", number, 0.0, 0, verdict, (), params, None, 0.0, "out of memory", None)


@table(
    "fields",
    [
        {**SCRIPT, **PYTHON, **AUTO},
        {**SCRIPT, **PYTHON, "program": ("-m", "pkg.train"), "metrics": ()},
        {**AUTO, "name": "a", "launcher": "command", "program": ("make", "train"), "workdir": "/w"},
        {**SCRIPT, **PYTHON, **FULL},
        {**SCRIPT, **PYTHON, **REST, "phases": PHASES, "alerts": {"gpu_hot": {"above_celsius": 80, "for": "2 min"}}},
        {**SCRIPT, **PYTHON, **AUTO, "alerts": None, "best": BestMetric("a", "min"), "recovery": {"policy": "off"}},
        *({**SCRIPT, **PYTHON, "disk_bytes": size} for size in (20 << 40, 1_500_000_000_000, 1_234_567_890_123, 7)),
    ],
)
def test_what_is_saved_runs_the_same(fields: dict[str, Any]) -> None:
    spec = RunSpec(**{"gpus": GpuRequest(), **fields})
    text = saved(spec)
    again = resolve(read_profile(text, Path("/elsewhere/mine.yaml")), environ={})
    for name in (
        "launcher", "program", "workdir", "python", "nproc", "gpus", "params", "env", "metrics", "loss", "checkpoints",
        "roles", "scopes", "multiples", "recovery", "grace_seconds", "best", "alerts", "gates", "sinks", "priority",
        "visible", "disk_bytes", "phases", "time_limit_seconds",
    ):  # fmt: skip
        assert getattr(again, name) == getattr(spec, name), name
    assert (again.args or ()) == (spec.args or ())


TEXTS = [
    "1e3",
    "007",
    "on",
    "null",
    "",
    " a",
    "#x",
    "a: b",
    'it\'s "so"',
    "[1, 2]",
    "{x}",
    "-",
    "é\u2028x",
    "a\nb" * 90,
]


@table("text", TEXTS)
def test_a_text_stays_a_text(text: str) -> None:
    spec = RunSpec(**SCRIPT, **PYTHON, params={"x": text}, args=("--x", "{x}", text), env={"X": text})
    profile = read_profile(saved(spec), Path("/elsewhere/mine.yaml"))
    assert profile.form.params["x"].default == text
    assert profile.form.env == {"X": text}
    assert profile.form.args == ["--x", "{x}", text]


CHANGES: list[tuple[list[Attempt], list[DecisionView], dict[str, Scalar], dict[str, Scalar], int]] = [
    # attempts, decisions, last parameters; the parameters of the saved profile, the number of its remarks
    ([attempt(1, bs=8, lr=0.1)], [], {"bs": 8, "lr": 0.1}, {"bs": 8, "lr": 0.1}, 0),
    ([attempt(1, bs=8, lr=0.1)], [decision(1, "retry", bs=4)], {"bs": 4, "lr": 0.1}, {"bs": 8, "lr": 0.1}, 1),
    ([attempt(1, bs=8, lr=0.1), attempt(2, bs=4, lr=0.1)], [decision(1, "retry", bs=4), decision(2, "retry", bs=2)],
     {"bs": 2, "lr": 0.1}, {"bs": 8, "lr": 0.1}, 1),
    # a person resumed the run with other values
    ([attempt(1, bs=8, lr=0.1), attempt(2, bs=8, lr=0.5)], [decision(1, "stop")],
     {"bs": 8, "lr": 0.5}, {"bs": 8, "lr": 0.5}, 0),
    ([attempt(1, bs=8, lr=0.1), attempt(2, bs=4, lr=0.1), attempt(3, bs=6, lr=0.1)],
     [decision(1, "retry", bs=4), decision(2, "stop")], {"bs": 6, "lr": 0.1}, {"bs": 6, "lr": 0.1}, 0),
    ([attempt(1, bs=8, lr=0.1), attempt(2, bs=4, lr=0.1), attempt(3, bs=4, lr=0.5)],
     [decision(1, "retry", bs=4), decision(2, "stop")], {"bs": 4, "lr": 0.5}, {"bs": 8, "lr": 0.5}, 1),
    # with fewer GPUs, which is no decision about the incident
    ([attempt(1, bs=8, lr=0.1)], [decision(1, "retry")], {"bs": 4, "lr": 0.1}, {"bs": 8, "lr": 0.1}, 1),
]  # fmt: skip


@table(("attempts", "decisions", "ended_with", "requested", "remarks"), CHANGES)
def test_what_recovery_changed_is_only_a_comment(
    attempts: list[Attempt],
    decisions: list[DecisionView],
    ended_with: dict[str, Scalar],
    requested: dict[str, Scalar],
    remarks: int,
) -> None:
    spec = RunSpec(**SCRIPT, **PYTHON, params={"bs": 8, "lr": 0.1}, args=("{bs}", "{lr}"))
    run = Run(
        "a-1",
        1,
        "a",
        profile="a",
        state=RunState.FAILED,
        attempt=len(attempts),
        params=ended_with,
        spec_json=json.dumps(spec.to_json()),
        created_at=0.0,
    )
    text = saved_profile(run, "mine", SavedHistory((), attempts, decisions))
    params = read_profile(text, Path("/elsewhere/mine.yaml")).form.params
    assert {name: param.default for name, param in params.items()} == requested
    comments = [line for line in text.splitlines() if "ended with" in line]
    assert len(comments) == remarks
    assert all(f"bs: {ended_with['bs']} (" in line for line in comments)


def test_secrets_and_what_was_learned() -> None:
    spec = RunSpec(
        **SCRIPT, **PYTHON, env={"TOKEN": REDACTED, "A": "1"}, args=("--key", "{key}"), params={"key": REDACTED}
    )
    form = LearnedForm("step 1 loss \x1b[31m0.5", ("loss",), r"step (?P<step>\d+) loss (?P<loss>\S+)")
    reports = [
        SourceReport("/log", "output", 9, names=("loss",), step=None, forms=(form,)),
        SourceReport("/w/a.csv", "csv", 5, ("acc",), "epoch"),
    ]
    text = saved(spec, history=SavedHistory(reports))
    profile = read_profile(text, Path("/elsewhere/mine.yaml"))
    assert (profile.form.env, profile.form.params["key"].default) == ({"A": "1"}, UNDECIDED)
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert any("env.TOKEN, params.key:" in line for line in comments)
    assert any("(?P<loss>" in line for line in comments)
    assert any("/w/a.csv" in line for line in comments)
    assert REDACTED not in text
    assert "\x1b" not in text


SECRETS: list[tuple[dict[str, Any], list[str], str]] = [
    # stored fields, the filled command line, the places where problems are reported
    ({"program": ("env", f"HF_TOKEN={REDACTED}", "train")}, ["env", "HF_TOKEN=x", "train"], "params.HF_TOKEN"),
    ({"program": ("train",), "args": ("--api-key", REDACTED, f"--hub-token={REDACTED}", "--lr", "{lr}")},
     ["train", "--api-key", "x", "--hub-token=x", "--lr", "0.1"], "params.api_key, params.hub_token"),
    ({"program": ("curl", f"-HAuthorization: Bearer {REDACTED}", f"http://me:{REDACTED}@a/{REDACTED}"),
      "args": (REDACTED,)},
     ["curl", "-HAuthorization: Bearer x", "http://me:x@a/x", "x"],
     "params.secret_Bearer, params.secret_me, params.secret_a, params.secret"),
    ({"program": ("a", f"API_KEY={REDACTED}"), "args": ("--api-key", REDACTED, "--api-key", REDACTED)},
     ["a", "API_KEY=x", "--api-key", "x", "--api-key", "x"],
     "params.API_KEY, params.api_key, params.secret_api_key_2"),
    ({"program": ("a",), "sinks": {"mlflow": f"http://a:{REDACTED}@b"}, "checkpoints": CheckpointSpec("/w", LEARNED,
      ("--token", REDACTED))},
     ["a"], "checkpoints.resume, sinks.mlflow"),
]  # fmt: skip


@table(("fields", "filled", "places"), SECRETS)
def test_secrets_are_to_be_filled_in(fields: dict[str, Any], filled: list[str], places: str) -> None:
    text = saved(RunSpec(**fields, name="a", launcher="command", workdir="/w", params={"lr": 0.1}))
    assert REDACTED not in text
    assert f"# {places}: secret" in text
    profile = read_profile(text, Path("/elsewhere/mine.yaml"))
    secrets = {name: "x" for name, param in profile.form.params.items() if param.default == UNDECIDED}
    again = resolve(profile, overrides=secrets, environ={})
    assert [*expand((*again.program, *(again.args or ())), again.params, "/run", checkpoint=None)] == filled
    expected = {0.1, REDACTED} if secrets else {0.1}
    assert set(redact_spec(again).params.values()) == expected


def test_the_target_of_a_run() -> None:
    target = {"name": "box", "kind": "ssh", "host": "h", "poll": 5}
    text = saved(RunSpec(**SCRIPT, python="python", target=target))
    targets = read_profile(text, Path("/elsewhere/mine.yaml")).form.targets
    assert {"name": "box", **stored_target(targets["box"])} == target
