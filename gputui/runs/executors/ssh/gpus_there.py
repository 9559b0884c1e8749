"""The GPUs of a machine by its own gputui, where it has one. Leases there count, too."""

from __future__ import annotations

import json
from typing import Any

from gputui.runs.checks import CheckResult, graded
from gputui.runs.executors.courier import CommandResult

COMMAND = ("bash", "-lc", "gputui gpus --json")
ANSWER_SECONDS = 30.0
_UNKNOWN = "which GPUs are free is unknown"
_REMEDY = "try gputui gpus there"


def judge_gpus(done: CommandResult) -> CheckResult:
    """Judge the answer to COMMAND. Pure."""
    if done.code == 127:
        return CheckResult("gpus", "skip", f"{_UNKNOWN}: there is no gputui there, and runs may share one")
    if done.code != 0:
        return CheckResult("gpus", "warn", f"{_UNKNOWN}: {done.words}", _REMEDY)
    try:
        gpus = json.loads(done.output.strip().rpartition("\n")[2])  # a login may print text before it
        free = sum(_is_free(gpu) for gpu in gpus)
        users = dict.fromkeys(str(gpu["run_id"]) for gpu in gpus if gpu["run_id"] is not None)
    except (ValueError, KeyError, TypeError):
        return CheckResult("gpus", "warn", f"{_UNKNOWN}: the gputui there gives another answer", _REMEDY)
    by = f"; runs there: {', '.join(users)}" if users else ""
    remedy = "gputui asks nobody there: choose others with gpus:, or wait"
    return graded("gpus", f"{free} of {len(gpus)} free by the gputui there{by}", remedy, warns=not free)


def _is_free(gpu: dict[str, Any]) -> bool:
    return gpu["state"] == "ok" and gpu["run_id"] is None and not gpu["processes"] and gpu["quarantine"] is None
