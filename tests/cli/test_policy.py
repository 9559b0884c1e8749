"""`gputui policy`: what would happen, with nothing done."""

from __future__ import annotations

import json

from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import POLICIES
from tests.cli.test_bad_input import refused
from tests.machine import Machine
from tests.texts import mentions

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
    listed = machine.json("policy")
    assert [policy["name"] for policy in listed] == list(POLICIES)
    assert listed[2]["max_attempts"] == 8 and listed[2]["backoff"]["base_seconds"] == 2.0
    said = machine.gputui("policy")
    assert all(name in said for name in POLICIES)


def test_a_policy_in_words_and_as_data(machine: Machine) -> None:
    said = machine.gputui("policy", "show", "aggressive")
    for name, kind in KINDS.items():
        assert name in said
        assert kind.deterministic == (name in said[said.index("never retried:") :])
    assert "rollback 1 + tighter_clip 2" in said
    shape = machine.json("policy", "show", "off")
    assert not shape["enabled"] and shape["max_attempts"] == 1 and shape["backoff"] is None
    assert machine.json("policy", "show")["name"] == "standard"
    assert json.loads(machine.gputui("policy", "--json", "show", "off")) == shape


def test_a_profile_says_what_applies_and_what_is_skipped_and_why(machine: Machine) -> None:
    profile = machine.profile("small", PROFILE)
    shape = machine.json("policy", "show", profile)
    assert (shape["profile"], shape["max_attempts"]) == ("small", 4)
    actions = {action["action"]: action for action in shape["actions"]}
    assert actions["shrink_batch"]["applied"]
    assert actions["shrink_batch"]["changes"] == [{"parameter": "micro", "from": 16, "to": 12}]
    assert not actions["fewer_workers"]["applied"]
    assert mentions(actions["fewer_workers"]["note"], "num_workers")
    said = machine.gputui("policy", "show", profile)
    assert "lowered micro 16 → 12" in said and "skipped" in said and "policy standard, changed" in said


def test_trying_changes_nothing_and_shows_no_secret(machine: Machine) -> None:
    profile = machine.profile("small", PROFILE)
    told = machine.json("policy", "try", "--incident", "cuda_oom", "--profile", profile)
    first, last = told["attempts"][0], told["attempts"][-1]
    assert (first["params_before"]["micro"], first["params_after"]["micro"]) == (16, 12)
    assert first["rung"] == 0 and first["resume_from"].endswith("step_00000900.pt")
    assert last["verdict"] == "stop" and told["stopped"]
    assert "hush" not in json.dumps(told)
    said = machine.gputui("policy", "try", "--incident", "cuda_oom", "--profile", profile)
    assert "micro  16 → 12" in said and "gradient_checkpointing was skipped" in said and "hush" not in said
    assert not machine.workspace.database.exists() and not list(machine.workspace.runs.iterdir())


def test_another_policy_a_limit_and_progress(machine: Machine) -> None:
    words = ("policy", "try", "--incident", "killed", "--policy", "aggressive", "--times", "2", "--progress")
    told = machine.json(*words)
    assert (told["policy"], told["stopped"], len(told["attempts"])) == ("aggressive", False, 2)
    assert told["attempts"][1]["step"] > told["attempts"][0]["step"]
    assert "and so on" in machine.gputui(*words)


def test_a_run_as_it_stands(machine: Machine) -> None:
    launched = machine.json("run", machine.profile(), "--set", "fail_at=25", "--wait")
    assert launched["state"] == "succeeded"
    told = machine.json("policy", "try", "--incident", "cuda_oom", "--run", launched["id"])
    first = told["attempts"][0]
    # The run was brought back once and ended at step 50 in its second attempt; that is where the trial begins.
    assert (first["attempt"], first["step"]) == (2, 49)
    assert first["resume_from"].endswith("step_000050.pt")
    assert first["changed"] == {"batch_size": 12, "grad_accum": 4}
    assert machine.json("policy", "show", launched["id"])["run"] == launched["id"]
    assert len(machine.json("show", launched["id"])["attempts"]) == 2


def test_what_is_refused(machine: Machine) -> None:
    assert "did you mean cuda_oom" in refused(machine, "policy", "try", "--incident", "cudaoom", code=2)
    assert "did you mean standard" in refused(machine, "policy", "show", "standrad", code=2)
    assert "known are" in refused(machine, "policy", "try", "--incident", "killed", "--policy", "xyz", code=2)
    assert "--incident" in refused(machine, "policy", "try", code=2)
    both = ("--profile", "a", "--run", "b")
    assert "not both" in refused(machine, "policy", "try", "--incident", "killed", *both, code=2)
    refused(machine, "policy", "try", "--incident", "killed", "--profile", "nowhere", code=2)
    refused(machine, "policy", "try", "--incident", "killed", "--run", "nobody-1", code=3)
    profile = machine.profile("bad", PROFILE.replace("max_attempts: 4", "max_attempts: many"))
    assert "max_attempts" in refused(machine, "policy", "show", profile, code=2)
