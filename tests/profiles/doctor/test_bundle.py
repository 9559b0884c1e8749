"""No secret leaves in a bundle."""

from __future__ import annotations

import json
import stat
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from gputui.core.config import Workspace, locate
from gputui.profiles.doctor.bundle import write_bundle
from gputui.runs.checks import CheckResult
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from tests.homes import open_store
from tests.texts import mentions

HF = "hf_" + "aB3dE5gH7jK9mN1pQ3sT"
ENVIRONMENT = {"HF_TOKEN": HF, "GPUTUI_API_KEY": "plain-words-key", "NCCL_DEBUG": "INFO", "DB_PASSWORD": "hunter22"}
PARAMETER = "wandb-parameter"
OPTION = "option-value-9"
IN_LOG = "only-in-the-log"
HOOK = "T0/B0/abcdef"
SECRETS = (HF, "plain-words-key", "hunter22", PARAMETER, OPTION, IN_LOG, HOOK)


@pytest.fixture
def home(tmp_path: Path) -> Workspace:
    """Every place that goes into a bundle holds a secret."""
    workspace = locate(tmp_path / "home", {})
    workspace.create()
    run = workspace.run_dir("r-1")
    run.mkdir()
    options = {"params": {"wandb_api_key": PARAMETER}, "env": ENVIRONMENT, "args": ("--password", OPTION)}
    write_spec(run / SPEC_FILE, RunSpec("r", "command", ("train",), "/", **options))
    with closing(open_store(workspace.database)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute(
            "INSERT INTO incidents (run_id, attempt, at, kind, summary, evidence, fingerprint) "
            "VALUES ('r-1', 1, 1e9, 'hang', ?, ?, 'f')",
            (f"could not log in with {PARAMETER}", json.dumps([{"line": f"got hunter22 and {OPTION}"}])),
        )
    workspace.agent_log.write_text(
        f"12:00 started with {HF}\n12:01 wandb {PARAMETER} refused\napi_key = '{IN_LOG}'\n"
        f"Authorization: Bearer {IN_LOG}\nhttps://me:{IN_LOG}@host/x\ncommand --password {IN_LOG}\n"
        f"12:02:03 read {Path.home()}/x, GPU 0: 81 °C, step=40\n"
    )
    workspace.notify.write_text(f"- to: 'https://hooks.slack.com/services/{HOOK}'\n- to: [tell, --api-key, {OPTION}]\n")
    workspace.settings.write_text('{"theme": "dark"}')
    return workspace


def test_planted_secrets_are_in_no_member(home: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    results = [CheckResult("torch", "fail", f"python said {HF} and hunter22", "fix")]
    names, left_out = write_bundle(path, home, results, ENVIRONMENT, 1e9)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "gputui-bundle"
    texts = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}
    assert set(texts) == set(names) >= {
        "versions.json", "doctor.json", "environment.json", "settings.json", "notify.json", "incidents.json",
        "agent.log",
    }  # fmt: skip
    assert not left_out
    for name, text in texts.items():
        assert not [secret for secret in SECRETS if secret in text], name
        assert not name.endswith(".json") or json.loads(text) is not None
    # What a reader of the bundle needs is still there.
    assert mentions(texts["agent.log"], "12:02:03", "~/x", "81 °C", "step=40")
    assert "could not log in" in texts["incidents.json"]
    assert json.loads(texts["environment.json"])["NCCL_DEBUG"] == "INFO"
    assert json.loads(texts["settings.json"]) == {"theme": "dark"}
    assert json.loads(texts["versions.json"])["schema"] >= 1


def test_what_cannot_be_read_is_left_out_and_named(home: Workspace, tmp_path: Path) -> None:
    home.agent_log.unlink()
    home.agent_log.mkdir()
    home.record.mkdir()
    home.notify.write_text("- to: [")
    home.settings.write_text("{")
    home.alerts.write_bytes(b"\xff")
    path = tmp_path / "b.tar.gz"
    _, left_out = write_bundle(path, home, [], ENVIRONMENT, 1e9)
    unfit = dict.fromkeys(("settings.json", "alerts.json", "notify.json"), "not valid")
    assert left_out == {**unfit, "record.json": "Is a directory", "agent.log": "not a regular file"}
    with tarfile.open(path) as archive:
        member = archive.extractfile("gputui-bundle/left_out.json")
        assert member is not None
        assert json.load(member) == left_out
