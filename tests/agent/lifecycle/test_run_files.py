"""What the agent takes from a run's specification."""

from __future__ import annotations

import pytest

from gputui.agent.lifecycle.run_files import redactor_of
from gputui.config import Workspace
from gputui.redaction import REDACTED
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec

INHERITED, OWN = "inherited-secret", "of-the-run-alone"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", INHERITED)


def test_a_run_has_its_own_secrets_and_those_that_it_inherits(workspace: Workspace) -> None:
    workspace.run_dir("r-1").mkdir()
    spec = RunSpec(name="r", launcher="command", program=("x",), workdir="/", env={"A_TOKEN": OWN, "LR": "0.123456"})
    write_spec(workspace.run_dir("r-1") / SPEC_FILE, spec)
    said = f"{INHERITED} and {OWN} at 0.123456"
    assert redactor_of(workspace, "r-1").text(said) == f"{REDACTED} and {REDACTED} at 0.123456"
    assert redactor_of(workspace, "gone-1").text(said) == f"{REDACTED} and {OWN} at 0.123456"
