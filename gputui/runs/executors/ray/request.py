"""The request that submits an attempt to a Ray cluster; pure, so that ``--dry-run`` prints the exact request."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gputui.runs.executors.courier import python_of

SENT = "_gputui"
"""The folder in a sent package of files other than the user's code."""
# Ray gives a job 3 s between its SIGTERM and SIGKILL unless configured otherwise.
STOP_MARGIN_SECONDS = 20


def submission_id(plan: Mapping[str, Any], token: str) -> str:
    """The job's name in the cluster. Ray refuses a second job of the same name."""
    return f"gputui-{plan['run_id']}.{plan['attempt']}-{token}"


def entry_script(plan: Mapping[str, Any], folder: str, claim: str) -> str:
    """The entrypoint of the job. Without shared files it is in the package, and creates ``folder``."""
    target = plan["target"]
    lines = ["#!/bin/bash"]
    if not plan["asks"]["gpus"]:
        lines.append("export CUDA_VISIBLE_DEVICES=")
    words = [python_of(plan), "-I", "-S"]
    words += [f"{folder}/far.py", "body"] if target.get("shared") else [f"{SENT}/far.py", "stream"]
    return "\n".join([*lines, *target.get("setup", ()), f"exec {shlex.join([*words, folder, claim])}", ""])


def job_request(plan: Mapping[str, Any], folder: str, job: str, package: str) -> dict[str, Any]:
    """The body of POST /api/jobs/. ``package`` is the URI of the uploaded package."""
    target = plan["target"]
    environment: dict[str, Any] = {
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(round(float(plan["grace_seconds"])) + STOP_MARGIN_SECONDS)}
    }
    if not target.get("shared"):
        environment["working_dir"] = package
    script = f"{folder}/job.sh" if target.get("shared") else f"{SENT}/job.sh"
    request: dict[str, Any] = {
        "entrypoint": f"exec bash {shlex.quote(script)}",
        "submission_id": job,
        "runtime_env": environment,
        "metadata": {"job_submission_id": job, "gputui_run": str(plan["run_id"])},
        # A job that requests nothing is placed on the head node.
        "entrypoint_num_cpus": float(target.get("cpus", 1)),
        "entrypoint_num_gpus": float(plan["asks"]["gpus"]),
    }
    if target.get("memory_bytes"):
        request["entrypoint_memory"] = int(target["memory_bytes"])
    if target.get("resources"):
        request["entrypoint_resources"] = dict(target["resources"])
    return request


def on_node(words: Sequence[str], job: str, node: str) -> dict[str, Any]:
    """A job that runs a command on a ``node`` (an IP address) and reserves no resources."""
    return {
        "entrypoint": shlex.join(words),
        "submission_id": job,
        "entrypoint_num_cpus": 0.0,
        "entrypoint_resources": {f"node:{node}": 0.001},
    }


def preview(plan: Mapping[str, Any], folder: str) -> str:
    """The request and the script, with placeholders for token and package."""
    target = plan["target"]
    job = submission_id(plan, "TOKEN")
    request = json.dumps(job_request(plan, folder, job, "gcs://_ray_pkg_HASH.zip"), indent=2)
    where = f"{folder}/job.sh" if target.get("shared") else f"{SENT}/job.sh of the package"
    return f"POST {target['address'].rstrip('/')}/api/jobs/\n{request}\n\n# {where}\n{entry_script(plan, folder, job)}"
