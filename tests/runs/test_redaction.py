"""Secrets never reach the database or a terminal; ordinary words stay readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.runs.command import Launch
from gputui.runs.redaction import (
    REDACTED,
    redact,
    redact_argv,
    redact_launch,
    redact_params,
    redact_spec,
    redact_text,
    restore,
)
from gputui.runs.spec import RunSpec

HF = "hf_" + "aB3" * 11
SK = "sk-proj-" + "x9_Y-" * 6
AWS = "AKIA" + "ABCD1234EFGH5678"


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "MYSECRET",
        "GOOGLE_CREDENTIALS",
        "KEY",
        "github_token",
        "SSH_KEY_FILE",
        "PGPASSWD",
        "HFKEY",
    ],
)
def test_environment_is_hidden_by_name(name: str) -> None:
    assert redact({name: "plain"}) == {name: REDACTED}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "2048"),
        ("NCCL_DEBUG", "WARN"),
        ("KEYBOARD", "us"),
        ("PATH", "/usr/bin:/bin"),
        ("HF_TOKEN", ""),
    ],
)
def test_other_environment_stays(name: str, value: str) -> None:
    assert redact({name: value}) == {name: value}


@pytest.mark.parametrize(
    "secret",
    [
        HF,
        SK,
        AWS,
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1_B2" * 6,
        "glpat-" + "x1Y2" * 6,
        "xoxb-123456789012-abc",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
        "AIza" + "Sy0_-" * 7,
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_secrets_are_known_by_their_look(secret: str) -> None:
    assert redact_text(f"login {secret} now") == f"login {REDACTED} now"
    assert redact({"ANY": secret}) == {"ANY": REDACTED}
    assert redact_params({"any": secret}) == {"any": REDACTED}
    assert redact_argv(["train.py", f"--x={secret}"]) == ("train.py", f"--x={REDACTED}")


@pytest.mark.parametrize(
    "text",
    [
        "half_precision",
        "hf_dataset",
        "sk-learn",
        "task-sk-abc",
        "runs/step_000200.pt",
        "0.1",
        "https://host:8080/x",
        "oom@step=40",
        "AKIA",
        "https://user@host/path:1@2",
        "runs/sk-a-long-name-of-an-experiment-2",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact_text(text) == text


def test_the_password_of_an_address() -> None:
    assert redact_text("postgres://me:pw!x@db/runs") == f"postgres://me:{REDACTED}@db/runs"


def test_parameters_of_training_are_not_secrets() -> None:
    params = {"pad_token": "<pad>", "sort_key": "loss", "max_tokens": 2048, "token_dim": 8, "lr": 0.1, "none": None}
    assert redact_params(params) == params


def test_options_are_hidden_by_name() -> None:
    argv = ["run", "--api-key", "abc", "--hf_token=xyz", "password=1", "--password", "--lr", "0.1", "--pad-token", "p"]
    shown = redact_argv(argv)
    assert shown == (
        "run", "--api-key", REDACTED, f"--hf_token={REDACTED}", f"password={REDACTED}", "--password",
        "--lr", "0.1", "--pad-token", "p",
    )  # fmt: skip


def test_a_specification_and_a_launch_are_hidden_everywhere() -> None:
    spec = RunSpec(
        name="n",
        launcher="python",
        python="/usr/bin/python3",
        program=("train.py",),
        workdir="/",
        params={"login": HF, "lr": 0.1},
        args=("--wandb-token", "abc", "--lr", "{lr}"),
        env={"A_TOKEN": "abc", "URL": f"https://u:{SK}@h"},
    )
    launch = Launch(("python", "--login", HF), {"A_TOKEN": "abc"}, "/", 30.0)
    for text in (repr(redact_spec(spec)), repr(redact_launch(launch))):
        assert HF not in text
        assert SK not in text
        assert "abc" not in text
    assert redact_spec(spec).params["lr"] == 0.1
    assert RunSpec.from_json(redact_spec(spec).to_json()) == redact_spec(spec)


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=60), max_size=4))
def test_twice_is_once(env: dict[str, str]) -> None:
    assert redact(redact(env)) == redact(env)
    assert redact_params(redact_params(env)) == redact_params(env)


def test_stored_parameters_get_their_secret_back() -> None:
    original = {"login": HF, "lr": 0.1, "batch_size": 128}
    stored = redact_params({**original, "batch_size": 96})
    assert stored["login"] == REDACTED
    assert restore(stored, original) == {**original, "batch_size": 96}


def test_a_secret_that_was_never_stored_is_said() -> None:
    with pytest.raises(ValueError, match="login"):
        restore({"login": REDACTED}, {"login": "anything"})
    assert restore({"note": REDACTED}, {"note": REDACTED}) == {"note": REDACTED}


def test_nobody_learns_where_messages_go() -> None:
    notify = {"webhook": "https://hooks.example.org/T0/B1/secret", "command": ["tell", "--api-key", "hunter2"]}
    spec = RunSpec(
        name="a", launcher="command", program=("true",), workdir="/", recovery={"policy": "off", "notify": notify}
    )
    shown = redact_spec(spec)
    assert shown.recovery == {
        "policy": "off",
        "notify": {"webhook": f"https://{REDACTED}", "command": ["tell", "--api-key", REDACTED]},
    }
    assert redact_spec(shown) == shown
