"""`gputui policy`: what would happen, with nothing done."""

from __future__ import annotations

import json

from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.recovery import policy_simulation
from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import POLICIES
from tests.homes import Home
from tests.machines import Machine
from tests.stories import overnight
from tests.texts import mentions
from tests.ui.cli.program import json_of, output_of

PROFILE = """
    name: small
    launcher: python
    script: steps.py
    python: python3
    gpus: 0
    params: {steps: 50, micro: 16, api_key: hush-hush}
    roles: {batch_size: micro}
    checkpoints: {dir: "{run_dir}/checkpoints", pattern: "step_*.pt", resume: "--resume {checkpoint}"}
    recovery: {policy: standard, max_attempts: 4}
"""


def test_the_ready_policies(machine: Machine) -> None:
    listed = json_of(machine.workspace, "policy")
    assert [policy["name"] for policy in listed] == list(POLICIES)
    assert listed[2]["max_attempts"] == 8
    assert listed[2]["backoff"]["base_seconds"] == 2.0
    text = output_of(machine.workspace, "policy")
    assert all(name in text for name in POLICIES)


def test_a_policy_in_words_and_as_data(machine: Machine) -> None:
    text = output_of(machine.workspace, "policy", "show", "aggressive")
    for name, kind in KINDS.items():
        assert name in text
        assert (kind.retry == "never") == (name in text[text.index("never retried:") :])
    assert mentions(text, "rollback 1 + ", "tighter_clip 2")
    policy = json_of(machine.workspace, "policy", "show", "off")
    assert not policy["enabled"]
    assert policy["max_attempts"] == 1
    assert policy["backoff"] is None
    assert json_of(machine.workspace, "policy", "show")["name"] == "standard"
    assert json.loads(output_of(machine.workspace, "policy", "--json", "show", "off")) == policy


def test_a_profile_says_what_applies_and_what_is_skipped_and_why(machine: Machine) -> None:
    profile = machine.profile("small", PROFILE)
    policy = json_of(machine.workspace, "policy", "show", profile)
    assert (policy["profile"], policy["max_attempts"]) == ("small", 4)
    actions = {action["action"]: action for action in policy["actions"]}
    assert actions["shrink_batch"]["applied"]
    assert actions["shrink_batch"]["changes"] == [{"parameter": "micro", "from": 16, "to": 12}]
    assert not actions["fewer_workers"]["applied"]
    assert mentions(actions["fewer_workers"]["note"], "num_workers")
    text = output_of(machine.workspace, "policy", "show", profile)
    assert "lowered micro 16 → 12" in text
    assert "skipped" in text
    assert "policy standard, changed" in text


def test_trying_changes_nothing_and_shows_no_secret(machine: Machine) -> None:
    profile = machine.profile("small", PROFILE)
    trial = json_of(machine.workspace, "policy", "try", "--incident", "cuda_oom", "--profile", profile)
    first = trial["attempts"][0]
    last = trial["attempts"][-1]
    assert (first["params_before"]["micro"], first["params_after"]["micro"]) == (16, 12)
    assert first["rung"] == 0
    assert first["resume_from"].endswith("step_00000018.pt")
    assert last["verdict"] == "stop"
    assert trial["stopped"]
    assert "hush" not in json.dumps(trial)
    text = output_of(machine.workspace, "policy", "try", "--incident", "cuda_oom", "--profile", profile)
    assert "micro  16 → 12" in text
    assert "gradient checkpointing was skipped" in text
    assert "hush" not in text
    assert not machine.workspace.database.exists()
    assert not list(machine.workspace.runs.iterdir())


def test_a_new_run_like_one_as_it_stands(machine: Machine) -> None:
    home = Home(machine.workspace)
    overnight(home)
    home.close()
    trial = json_of(machine.workspace, "policy", "try", "--incident", "cuda_oom", "--run", "vit-b16-1")
    first = trial["attempts"][0]
    assert (first["attempt"], first["step"]) == (1, 950)
    assert first["params_before"]["batch_size"] == 384
    assert json_of(machine.workspace, "policy", "show", "vit-b16-1")["run"] == "vit-b16-1"


def test_a_short_run_fails_before_its_end(workspace: Workspace) -> None:
    for length, fails_at, every in ((300, 142, 15), (5, 5, 1), (100_000, 950, 100)):
        spec = replace(policy_simulation.EXAMPLE, params={**policy_simulation.EXAMPLE.params, "steps": length})
        situation = policy_simulation.fresh(spec)
        assert (situation.fails_at, situation.every) == (fails_at, every)
        assert situation.checkpoints[0].step == fails_at // every * every
    text = output_of(workspace, "policy", "try", "--incident", "cuda_oom", "--profile", "digits-ddp")
    assert mentions(text, "step 142")
    assert mentions(text, "15 steps")
