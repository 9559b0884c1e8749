"""Secrets of every shape go in by every way that there is, through a run that fails and is recovered; they come out
nowhere but in the run's own files."""

from __future__ import annotations

import http.server
import io
import json
import os
import shutil
import signal
import sys
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gputui.profiles.doctor.bundle import write_bundle
from gputui.runs.notices import EVENTS
from tests.conftest import wait_until
from tests.faults.jobs import SCRIPTS
from tests.machines import Machine

# Recognised by the name of an environment variable that the agent inherits and passes on.
INHERITED = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "OPENAI_API_KEY": "sk-proj-Ab3dEfGh1JkLmN0pQrStUvWx",
    "GITHUB_PAT": "inherited-plain-pat-1",
    "AZURE_CONNECTION_STRING": "AccountName-x.AccountKey-inherited2",
}
# Recognised by the name of a variable in the profile's environment.
ENVIRONMENT = {
    "HF_TOKEN": "hf_" + "aB3dE5gH7jK9mN1pQ3sTuV",
    "SERVICE_TOKEN": "plain-service-token-3",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYplantedKEY",
    "DB_PASSWORD": "pa55-w0rd!four",
    "PGPASS": "environment-pass-5",
}
PARAMETERS = {"api_key": "parameter-key-6", "token": "parameter-token-7", "hub_token": "parameter-hub-token-8"}
# Recognised by an option's name, after = or as the next argument.
OPTIONS = {"--api-key=": "option-key-9", "--token ": "option-token-10", "--password ": "option-password-11"}
# Recognised as passwords in URLs, under harmless names.
IN_ADDRESSES = {
    "ENDPOINT": "address-password-12",
    "option": "address-password-13",
    "parameter": "address-password-14",
    "sink": "address-password-20",
}
# Recognised by their form alone.
BY_LOOK = (
    "ghp_" + "a1B2" * 9,
    "AKIA" + "ABCD1234EFGH5678",
    "glpat-" + "x1Y2" * 6,
    "xoxb-123456789012-abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJlLXNpZ24",
    "nvapi-" + "Ab1_" * 8,
)
# Recognised by the text before them, where they are printed.
NAMED_IN_TEXT = {
    "password=": "printed-password-15",
    '"client_secret": "': "printed-json-secret-16",
    "Authorization: Bearer ": "printed-bearer-17",
    "https://me:": "printed-url-password-18",
}
HOOK_PATH = "hook-path-secret-19"
SECRETS = (
    *INHERITED.values(), *ENVIRONMENT.values(), *PARAMETERS.values(), *OPTIONS.values(),
    *IN_ADDRESSES.values(), *BY_LOOK, *NAMED_IN_TEXT.values(), HOOK_PATH,
)  # fmt: skip

# The script or the person chose the modes of these files; the folders around them are closed to others.
BY_SCRIPT = ("metrics.jsonl", "error.json", "alerts.yaml", "notify.yaml")


PROFILE = """
name: blabs
launcher: python
script: blabs.py
python: {python}
gpus: 1
params: {params}
env: {env}
args: >-
  planted.txt --auth {{api_key}} --api-key={key} --token {token} --password {password}
  --at https://me:{address}@example.org/ --from {{source}}
metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
sinks: {{jsonl: , tensorboard: , mlflow: "http://me:{sink}@127.0.0.1:1"}}
recovery:
  policy: standard
  ladders: {{user_exception: [restart]}}
  backoff: {{base: 0}}
"""


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[str]]]:
    """The address of a server, and what it was sent."""
    requests: list[str] = []

    class Answering(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"json://127.0.0.1:{server.server_port}/{HOOK_PATH}", requests
    server.shutdown()
    server.server_close()


def plant(machine: Machine, hook: str) -> str:
    """Write everything that holds a secret but the environment; the profile's path."""
    folder = machine.folder
    shutil.copy(SCRIPTS / "blabs.py", folder)
    in_text = [f"{before}{secret}" + ("@host/x" if "://" in before else "") for before, secret in NAMED_IN_TEXT.items()]
    by_value = [*INHERITED.values(), *ENVIRONMENT.values(), *PARAMETERS.values(), *OPTIONS.values()]
    lines = [*by_value, *IN_ADDRESSES.values(), *BY_LOOK, *in_text]
    (folder / "planted.txt").write_text("\n".join(lines) + "\n")
    (folder / "tell.py").write_text(
        "import pathlib, sys\nout = pathlib.Path(__file__).with_name('told.txt')\n"
        "with out.open('a') as file: file.write(sys.stdin.read() + chr(10))\n"
    )
    machine.workspace.alerts.write_text("gradient_norm: {above: 1, for: 0}\n")
    tell = f"[{sys.executable}, {folder / 'tell.py'}, --api-key, {OPTIONS['--api-key=']}]"
    told_of = f"events: [{', '.join(EVENTS)}], min_severity: info"
    machine.workspace.notify.write_text(f"- {{to: '{hook}', {told_of}}}\n- {{to: {tell}, {told_of}}}\n")
    parameters = {**PARAMETERS, "source": f"postgres://me:{IN_ADDRESSES['parameter']}@db/x"}
    environment = {**ENVIRONMENT, "ENDPOINT": f"https://me:{IN_ADDRESSES['ENDPOINT']}@example.org/"}
    environment["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    text = PROFILE.format(
        python=sys.executable,
        params=json.dumps(parameters),
        env=json.dumps(environment),
        key=OPTIONS["--api-key="],
        token=OPTIONS["--token "],
        password=OPTIONS["--password "],
        address=IN_ADDRESSES["option"],
        sink=IN_ADDRESSES["sink"],
    )
    return machine.profile("blabs", text)


def leaks_in(outputs: Mapping[str, bytes]) -> list[str]:
    """The places with a secret, its beginning or its end."""
    pieces = {piece for secret in SECRETS for piece in (secret[:12], secret[-12:])}
    return [
        f"{name}: {piece} in …{data[max(0, at - 60) : at + 60]!r}"
        for name, data in outputs.items()
        for piece in pieces
        if (at := data.find(piece.encode())) >= 0
    ]


def members(bundle: Path) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(bundle.read_bytes())) as archive:
        return {
            f"bundle: {member.name}": file.read()
            for member in archive.getmembers()
            if (file := archive.extractfile(member)) is not None
        }


@pytest.mark.long
def test_planted_secrets_come_out_nowhere(
    machine: Machine, webhook: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in INHERITED.items():
        monkeypatch.setenv(name, value)
    machine.workspace.scenario.write_text("gpus: 1\nseed: 3\n")
    hook, requests = webhook
    profile = plant(machine, hook)
    recorder = machine.start("--record", "--prometheus", "127.0.0.1:0")
    assert recorder.stderr is not None
    endpoint = recorder.stderr.readline().split()[-1]
    outputs: dict[str, bytes] = {}

    def say(*arguments: str, code: int | None = 0) -> None:
        outputs[" ".join(arguments)] = machine.gputui(*arguments, code=code).encode()

    say("check", profile, code=None)
    say("run", profile)
    run_dir = machine.workspace.run_dir("blabs-1")
    wait_until(lambda: machine.rows("SELECT 1 FROM metrics WHERE attempt = 2 AND step = 5"), what="the second attempt")
    wait_until(lambda: machine.rows("SELECT 1 FROM alerts WHERE rule = 'gradient_norm'"), what="the alert")
    say("--once", "--json")
    with urllib.request.urlopen(endpoint, timeout=10) as answer:
        outputs["prometheus"] = answer.read()
    (run_dir / "go").touch()
    machine.wait_for("blabs-1", "failed")
    wait_until(lambda: not machine.rows("SELECT 1 FROM notices WHERE sent_at IS NULL"), what="the messages")
    wait_until(
        lambda: machine.rows("SELECT 1 FROM events WHERE kind = 'sink_failed' AND key = 'mlflow'"), what="its refusal"
    )
    wait_until(lambda: b"gputui.end" in (run_dir / "sinks/metrics.jsonl").read_bytes(), what="the sinks")
    for command in ("show blabs-1 --json", "explain blabs-1"):
        say(*command.split(), code=None)
    out = machine.folder / "out"
    out.mkdir()
    say("export", "blabs-1", "--to", "jsonl", "--out", str(out / "all.jsonl"))
    say("report", "blabs-1", "--out", str(out / "report"))
    write_bundle(machine.folder / "b.tar.gz", machine.workspace, [], os.environ, time.time())
    outputs |= members(machine.folder / "b.tar.gz")
    recorder.send_signal(signal.SIGTERM)
    output, errors = recorder.communicate(timeout=30)
    outputs |= {"recorder": (output + errors).encode(), "webhook": "\n".join(requests).encode()}
    outputs["command"] = (machine.folder / "told.txt").read_bytes()

    home = [path for path in (machine.folder / "home").rglob("*") if path.is_file()]
    for path in [*home, *(path for path in out.rglob("*") if path.is_file())]:
        if path.suffix == ".tmp" and not path.exists():
            # A temporary file of a sink's state, which has got its final name meanwhile.
            continue
        if path.name in (*BY_SCRIPT, "spec.json", "attempt.json", "output.log"):
            assert path.stat().st_mode & 0o077 == 0 or path.name in BY_SCRIPT, path
        else:
            outputs[str(path.relative_to(machine.folder))] = path.read_bytes()
    # Every kind of output was searched, and the script did get its secrets.
    assert any(name.endswith("gputui.db") for name in outputs)
    assert any("sinks/tensorboard/events" in name for name in outputs)
    assert any("incidents/1/logs" in name for name in outputs)
    assert requests
    assert outputs["command"]
    assert b"[redacted]" in outputs["explain blabs-1"]
    assert b"[redacted]" in outputs["webhook"]
    assert not leaks_in(outputs)
    argv = json.loads((run_dir / "attempts/2/attempt.json").read_text())["argv"]
    assert PARAMETERS["api_key"] in argv
    assert OPTIONS["--token "] in argv
