"""The batch script of an attempt; pure, so that ``--dry-run`` prints the exact script that is submitted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from gputui.runs.executors.courier import python_of
from gputui.runs.executors.far import PROGRAM

WARN_SECONDS = 120
CONFIGURATION = "SLURM_CONF"
"""The variable that names the cluster of Slurm's commands."""


def job_name(run_id: str, attempt: int) -> str:
    """The attempt's job name in squeue."""
    return f"{run_id}.{attempt}"


def nodes_of(target: Mapping[str, Any]) -> int:
    """The number of nodes of an attempt."""
    return int(target.get("nodes", 1))


def comment(token: str) -> str:
    """The job's comment, by which a courier finds its job."""
    return f"gputui:{token}"


def batch_script(plan: Mapping[str, Any], folder: str, *, token: str) -> str:
    """The script for an attempt's ``plan`` (attempt.json); ``folder`` is its folder on the target."""
    target = plan["target"]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _options(plan, target, folder, token))]
    # The warning signal may come while these lines run. The program that serves the attempt handles it later.
    lines += ["trap '' USR1", *target.get("setup", ()), ""]
    words = [python_of(plan), "-I", "-S", f"{folder}/{PROGRAM}", "body", folder]
    body = " ".join(shlex.quote(word) for word in words)
    lines += [f'exec {body} "$SLURM_JOB_ID" scontrol requeue "$SLURM_JOB_ID"', ""]
    return "\n".join(lines)


def _options(plan: Mapping[str, Any], target: Mapping[str, Any], folder: str, token: str) -> Iterator[str]:
    yield f"--job-name={job_name(plan['run_id'], plan['attempt'])}"
    yield f"--comment={comment(token)}"
    yield f"--nodes={nodes_of(target)}"
    yield "--ntasks-per-node=1"
    gpus = int(plan["asks"]["gpus"])
    if gpus:
        kind = f"{target['gpu_type']}:" if target.get("gpu_type") else ""
        yield f"--gres=gpu:{kind}{gpus}"
    names = {"partition": "partition", "account": "account", "qos": "qos", "exclude": "exclude", "memory": "mem"}
    for key, name in names.items():
        if target.get(key):
            yield f"--{name}={target[key]}"
    if target.get("constraint"):
        yield f"--constraint={_quoted(target['constraint'])}"
    if target.get("cpus"):
        yield f"--cpus-per-task={target['cpus']}"
    if target.get("time"):
        yield f"--time={sbatch_time(target['time'])}"
    yield f"--signal=B:USR1@{target.get('warn', WARN_SECONDS)}"
    yield "--requeue"
    yield "--open-mode=append"
    # A % starts a pattern.
    yield f"--output={_quoted(folder.replace('%', '%%') + '/job.log')}"
    yield from target.get("options", ())


def sbatch_time(text: str) -> str:
    """Convert ``4h``, ``30m`` and ``2d`` to sbatch's minutes. Other forms are sbatch's own."""
    match = re.fullmatch(r"(\d+)([mhd])", text)
    if match is None:
        return text
    return str(int(match[1]) * {"m": 1, "h": 60, "d": 1440}[match[2]])


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_./%:@+=,&|()\[\]-]+", text) else '"' + text.replace('"', '\\"') + '"'
