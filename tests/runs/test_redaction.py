"""Secrets never reach the database or a terminal; ordinary words stay readable."""

from __future__ import annotations

import pytest

from gputui.core.redaction import (
    Redactor,
    redact,
    redact_argv,
    redact_command_line,
    redact_params,
    redact_text,
    secrets_in,
)
from gputui.core.secret_patterns import REDACTED
from gputui.runs.command import Launch
from gputui.runs.redaction import redact_launch, redact_spec, restore, secrets_of
from gputui.runs.spec import CheckpointSpec, Phase, RunSpec
from tests.tables import table

HF = "hf_" + "aB3" * 11
SK = "sk-proj-" + "x9_Y-" * 6
AWS = "AKIA" + "ABCD1234EFGH5678"


@table("name", [
    "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "MYSECRET", "GOOGLE_CREDENTIALS", "KEY",
    "github_token", "SSH_KEY_FILE", "PGPASSWD", "HFKEY",
])  # fmt: skip
def test_environment_is_hidden_by_name(name: str) -> None:
    assert redact({name: "plain"}) == {name: REDACTED}


@table("name, value", [
    ("TOKENIZERS_PARALLELISM", "false"), ("MAX_TOKENS", "2048"), ("NCCL_DEBUG", "WARN"), ("KEYBOARD", "us"),
    ("PATH", "/usr/bin:/bin"), ("HF_TOKEN", ""),
])  # fmt: skip
def test_other_environment_stays(name: str, value: str) -> None:
    assert redact({name: value}) == {name: value}


@table("secret", [
    HF, SK, AWS, "ghp_" + "a1B2" * 9, "github_pat_" + "a1_B2" * 6, "glpat-" + "x1Y2" * 6, "xoxb-123456789012-abc",
    "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl", "AIza" + "Sy0_-" * 7,
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
])  # fmt: skip
def test_secrets_are_known_by_their_look(secret: str) -> None:
    assert redact_text(f"login {secret} now") == f"login {REDACTED} now"
    assert redact({"ANY": secret}) == {"ANY": REDACTED}
    assert redact_params({"any": secret}) == {"any": REDACTED}
    assert redact_argv(["train.py", f"--x={secret}"]) == ("train.py", f"--x={REDACTED}")


@table("text", [
    "half_precision", "hf_dataset", "sk-learn", "task-sk-abc", "runs/step_000200.pt", "0.1", "https://host:8080/x",
    "oom@step=40", "AKIA", "https://user@host/path:1@2", "runs/sk-a-long-name-of-an-experiment-2",
])  # fmt: skip
def test_ordinary_text_stays(text: str) -> None:
    assert redact_text(text) == text


def test_parameters_of_training_are_not_secrets() -> None:
    params = {"pad_token": "<pad>", "user_token": "<|user|>", "sort_key": "loss", "max_tokens": 2048, "none": None}
    assert redact_params(params) == params


def test_options_are_hidden_by_name() -> None:
    argv = ["run", "--api-key", "abc", "--hf_token=xyz", "password=1", "--password", "--lr", "0.1", "--pad-token", "p"]
    redacted = redact_argv(argv)
    assert redacted == (
        "run", "--api-key", REDACTED, f"--hf_token={REDACTED}", f"password={REDACTED}", "--password",
        "--lr", "0.1", "--pad-token", "p",
    )  # fmt: skip


@table(("pieces", "expected"), [
    ("[--token hunter --amp {amp}]", f"[--token {REDACTED} --amp {{amp}}]"),
    ("[--amp {amp} --token hunter]", f"[--amp {{amp}} --token {REDACTED}]"),
    ("[--token=hunter {amp}]", f"[--token={REDACTED} {{amp}}]"), ("[token=a{amp}]", f"[token={REDACTED}]"),
    ("--token {key} [--api-key {key}] hf_token={key}", "--token {key} [--api-key {key}] hf_token={key}"),
    ("[--api-key={key}] --x [1,2] [{key},{amp}]", "[--api-key={key}] --x [1,2] [{key},{amp}]"),
])  # fmt: skip
def test_optional_pieces_and_placeholders(pieces: str, expected: str) -> None:
    template = tuple(pieces.split())
    checkpoints = CheckpointSpec("/", "*", template)
    spec = RunSpec("n", "command", ("a", *template), "/", args=template, checkpoints=checkpoints)
    redacted = redact_spec(spec)
    assert redacted.checkpoints is not None
    assert redacted.args == redacted.checkpoints.resume == redacted.program[1:] == tuple(expected.split())
    assert redact_spec(redacted) == redacted
    assert ("hunter" in secrets_of(spec)) == ("hunter" in pieces)


def test_phases_are_hidden() -> None:
    phases = (Phase(10, {"token": "hunter", "lr": 0.1}), Phase(None, {"url": f"https://u:{SK}@h"}))
    spec = RunSpec("n", "command", ("a",), "/", phases=phases)
    assert [phase.params for phase in redact_spec(spec).phases] == [
        {"token": REDACTED, "lr": 0.1}, {"url": f"https://u:{REDACTED}@h"},
    ]  # fmt: skip
    assert "hunter" in secrets_of(spec)


def test_a_specification_and_a_launch_are_hidden_everywhere() -> None:
    env = {"A_TOKEN": "abc", "URL": f"https://u:{SK}@h"}
    arguments = ("--wandb-token", "abc", "--lr", "{lr}")
    params = {"login": HF, "lr": 0.1}
    spec = RunSpec("n", "python", ("train.py",), "/", "/usr/bin/python3", params=params, args=arguments, env=env)
    launch = Launch(("python", "--login", HF), {"A_TOKEN": "abc"}, "/", 30.0)
    for text in (repr(redact_spec(spec)), repr(redact_launch(launch))):
        assert HF not in text
        assert SK not in text
        assert "abc" not in text
    assert redact_spec(spec).params["lr"] == 0.1
    assert RunSpec.from_json(redact_spec(spec).to_json()) == redact_spec(spec)


def test_stored_parameters_get_their_secret_back() -> None:
    original = {"login": HF, "lr": 0.1, "batch_size": 128}
    stored = redact_params({**original, "batch_size": 96})
    assert stored["login"] == REDACTED
    assert restore(stored, original) == {**original, "batch_size": 96}


def test_a_secret_that_was_never_stored_is_said() -> None:
    with pytest.raises(ValueError, match="login"):
        restore({"login": REDACTED}, {"other": "anything"})
    assert restore({"note": REDACTED}, {"note": REDACTED}) == {"note": REDACTED}


def test_a_secret_behind_a_harmless_name_is_known_by_its_value() -> None:
    spec = RunSpec(
        name="n",
        launcher="command",
        program=("train", "--at", "https://me:address-pass@host/"),
        workdir="/",
        params={"api_key": "plain-key", "lr": 0.1},
        args=("--auth", "{api_key}", "--password", "an-option", "--token", "{api_key}"),
        env={"SERVICE_TOKEN": "plain-token", "NOTE": "with plain-key in it"},
    )
    assert secrets_of(spec) == {"plain-key", "plain-token", "an-option", "address-pass"}
    launch = Launch(("train", "--auth", "plain-key"), {"NOTE": "with plain-key in it", "LR": "0.1"}, "/", 30.0)
    redacted = redact_launch(launch, Redactor(secrets_of(spec)))
    assert redacted.argv == ("train", "--auth", REDACTED)
    assert redacted.env == {"NOTE": f"with {REDACTED} in it", "LR": "0.1"}
    assert "plain-key" not in repr(redact_spec(spec))


@table(
    ("text", "expected"),
    [
        ("password=hunter2 next", f"password={REDACTED} next"),
        ("cannot use api_key='a b' here", f"cannot use api_key='{REDACTED}' here"),
        ('{"client_secret": "a\\"b", "lr": 1}', f'{{"client_secret": "{REDACTED}", "lr": 1}}'),
        (r'"{\"hub_token\": \"abc\"}"', rf'"{{\"hub_token\": \"{REDACTED}\"}}"'),
        ("os.environ['WANDB_API_KEY'] = '0123abc'", f"os.environ['WANDB_API_KEY'] = '{REDACTED}'"),
        ("ValueError: password=abc; note: api_key: abc", f"ValueError: password={REDACTED}; note: api_key: {REDACTED}"),
        ("HF_TOKEN=abc python train.py", f"HF_TOKEN={REDACTED} python train.py"),
        ("train.py --token abc --lr 0.1", f"train.py --token {REDACTED} --lr 0.1"),
        ('password: "torn', f'password: "{REDACTED}'),
        ("Authorization: Basic YWJjOmRlZg==", f"Authorization: {REDACTED} {REDACTED}"),
        ("got bearer abc-def", f"got bearer {REDACTED}"),
        ("https://hooks.slack.com/services/T0/B1/x", f"https://hooks.slack.com/{REDACTED}"),
        ("https://b/x?a=1&X-Amz-Signature=abc&b=2", f"https://b/x?a=1&X-Amz-Signature={REDACTED}&b=2"),
        (
            "https://a.blob.core.windows.net/c?sv=1&sig=a%2Fb&se=2",
            f"https://a.blob.core.windows.net/c?sv=1&sig={REDACTED}&se=2",
        ),
        ("GET https://b/x?Signature=abc", f"GET https://b/x?Signature={REDACTED}"),
        ("python train.py --api-key=abcdef123 --lr 3", f"python train.py --api-key={REDACTED} --lr 3"),
        ("Command '['curl', '--token=abcdef123']' returned 1", f"Command '['curl', '--token={REDACTED}']' returned 1"),
        ("train.py --api-key --weird", f"train.py --api-key {REDACTED}"),
        ("train.py --api-key -abc", f"train.py --api-key {REDACTED}"),
        ("MYSQL_PWD=abc mysql", f"MYSQL_PWD={REDACTED} mysql"),
        ('DOCKER_AUTH_CONFIG={"auths": {"h": {"auth": "Ym9i"}}} x', f"DOCKER_AUTH_CONFIG={REDACTED} x"),
        ("npm _auth=abc", f"npm _auth={REDACTED}"),
        ("curl -u bob:pw https://h", f"curl -u bob:{REDACTED} https://h"),
        ("['curl', '--user', 'bob:pw']", f"['curl', '--user', 'bob:{REDACTED}']"),
        ("Cookie: session=abc; b=2", f"Cookie: {REDACTED}"),
        ('{"Cookie": "session=abc; b=2", "x": 1}', f'{{"Cookie": "{REDACTED}", "x": 1}}'),
        ("https://u:p'w@h/x", f"https://u:{REDACTED}@h/x"),
    ],
)
def test_secrets_are_known_by_the_name_before_them(text: str, expected: str) -> None:
    assert redact_text(text) == expected
    assert redact_text(expected) == expected


@table("text", [
    "step=40 loss=0.5 tokens_per_second=12345 lr: 0.1", "KeyError: 'layer.0.weight'",
    "missing key: layer.0.weight, pad_token='<pad>', sort_key=loss, n_tokens: 12", "Unexpected token: }",
    "basic block of 12 layers; --pad-token x --key name",
    "TOKENS_PER_BATCH=524288 MAX_TOKEN_LEN=12 PAD_TOKEN_ID=0 EOS_TOKEN: </s> TOKENS_PER_SEC=12345.6",
    "Missing KEY: layer.0; SORT_KEY=length, PARTITION_KEY=memory", "train.py --password --lr 0.1",
    "PWD=/home/me OLDPWD=/tmp; docker run -u 1000:1000 curl; sig=4 signature=(int, int)",
    "['http://a:80','me@x'] a cookie: none", "RuntimeError: CUDA error: an illegal memory access was encountered",
    "http://localhost:29500 and tcp://127.0.0.1:29500, device cuda:0",
])  # fmt: skip
def test_what_training_says_stays(text: str) -> None:
    assert redact_text(text) == text
    assert Redactor(["something else"]).text(text) == text


def test_options_within_a_command_of_the_shell() -> None:
    text = "python t.py --api-key=abcdef123"
    assert redact_argv(("bash", "-c", text)) == ("bash", "-c", f"python t.py --api-key={REDACTED}")
    raw = b"bash\0-c\0exec python t.py --wandb-key=abcdef123\0"
    assert redact_command_line(raw) == f"bash -c 'exec python t.py --wandb-key={REDACTED}'"
    assert secrets_in({"CALL": text}, {}) == {"abcdef123"}
    assert secrets_in({}, {"call": text}) == {"abcdef123"}
    assert secrets_in({}, {}, ("bash", "-c", text)) == {"abcdef123"}
    assert secrets_in({}, {}, ("bash", "-c", "t.py --api-key $WANDB_API_KEY --hf-token={token}")) == set()


@table("arguments, line", [
    (("python", "-c", "import time;f(9)", "-v"), "python -c 'import time;f(9)' -v"),
    (("python", "t.py", "--note", "", "-v"), "python t.py --note '' -v"),
    (("python", "t.py", "--api-key", "abcdef123"), f"python t.py --api-key {REDACTED}"),
    (("sshd: ada@pts/0",), "sshd: ada@pts/0"),
    (("python",), "python"),
])  # fmt: skip
def test_a_command_line_can_be_pasted(arguments: tuple[str, ...], line: str) -> None:
    assert redact_command_line("\0".join((*arguments, "")).encode()) == line


def test_the_user_of_curl() -> None:
    assert redact_argv(("/usr/bin/curl", "-u", "bob:hunter2", "x")) == ("/usr/bin/curl", "-u", f"bob:{REDACTED}", "x")
    assert redact_argv(("curl", "--user=bob:hunter2")) == ("curl", f"--user=bob:{REDACTED}")
    assert redact_argv(("docker", "run", "-u", "me:staff")) == ("docker", "run", "-u", "me:staff")
    assert secrets_in({}, {}, ("curl", "-u", "bob:hunter2")) == {"hunter2"}


def test_known_values_are_not_cut_out_of_words() -> None:
    redactor = Redactor(["length", "memory", "524288", "pass12", "sequencelength"])
    said = "--max_length 524288: CUDA out of memory; compass123 sequencelengths"
    assert redactor.text(said) == said
    assert redactor.text("a pass12, x=pass12") == f"a {REDACTED}, x={REDACTED}"
    assert redactor.text("a\\npass12 \x1b[31mpass12\x1b[0m") == f"a\\n{REDACTED} \x1b[31m{REDACTED}\x1b[0m"
    # A long value that is no common word is hidden inside other text as well.
    assert Redactor(["plain-token-3"]).text("xplain-token-3x") == f"x{REDACTED}x"
