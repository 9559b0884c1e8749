"""Options of a target that one run has otherwise, and the GPUs that a gputui there tells."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gputui.profiles.targets import TargetOptionError, stored_target, with_job_options
from gputui.runs.executors.commands import CommandResult
from gputui.runs.executors.ssh import judge_gpus
from tests.tables import table
from tests.texts import mentions

LAB = {"name": "lab", "kind": "slurm", "partition": "gpu", "time": "4h", "memory": "64G", "poll": 5}
KEPLER = {"name": "kepler2", "kind": "ssh", "host": "me@kepler2"}
FREE = {"state": "ok", "run_id": None, "processes": [], "locked_by": None, "quarantine": None, "excluded": False}


def test_a_run_has_other_options_than_its_target() -> None:
    changed = with_job_options(LAB, {"time": "8h", "account": "physics"})
    assert changed == {**LAB, "time": "8h", "account": "physics"}
    assert with_job_options(changed, {}) == changed
    assert LAB["time"] == "4h"


@table(
    ("target", "seconds"),
    [({"kind": "slurm"}, 5), ({"kind": "slurm", "poll": 9}, 9), ({"kind": "ssh", "host": "k"}, 2),
     ({"kind": "ray", "address": "http://h:8265"}, 2)],
)  # fmt: skip
def test_the_pause_between_two_questions_is_stored_with_a_run(target: dict[str, Any], seconds: int) -> None:
    assert stored_target(target)["poll"] == seconds


@table(
    ("target", "value", "phrases"),
    [
        (LAB, {"time": "eight hours"}, ("--time", "4h", "eight hours")),
        (LAB, {"partition": "big one"}, ("--partition", "big one")),
        (KEPLER, {"time": "8h"}, ("--time", "kepler2", "ssh")),
    ],
)
def test_an_option_that_the_target_cannot_have(
    target: dict[str, Any], value: dict[str, str], phrases: tuple[str, ...]
) -> None:
    with pytest.raises(TargetOptionError) as caught:
        with_job_options(target, value)
    assert mentions(str(caught.value), *phrases)
    assert "\n" not in str(caught.value)


@table(
    ("code", "output", "status", "phrases"),
    [
        (0, json.dumps([FREE, {**FREE, "run_id": "vit-3"}]), "pass", ("1 of 2", "vit-3")),
        (0, json.dumps([{**FREE, "processes": [{"pid": 7}]}, {**FREE, "state": "lost"}]), "warn", ("0 of 2",)),
        (0, json.dumps([FREE, {**FREE, "locked_by": "vit-1 of alice (pid 5)"}]), "pass", ("1 of 2",)),
        (0, f"Last login: today\n{json.dumps([FREE])}\n", "pass", ("1 of 1",)),
        (0, "[]", "warn", ("0 of 0",)),
        (127, "", "skip", ("unknown",)),
        (0, "Welcome!", "warn", ("unknown",)),
        (4, "", "warn", ("unknown",)),
    ],
)
def test_gpus_by_the_gputui_there(code: int, output: str, status: str, phrases: tuple[str, ...]) -> None:
    result = judge_gpus(CommandResult(code, output, ""))
    assert result.status == status
    assert mentions(result.detail, *phrases)
