"""`gputui target check` of a Ray cluster: each step with a deadline."""

from __future__ import annotations

import email.utils
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping
from typing import Any

from gputui.runs.checks import CheckResult
from gputui.runs.executors.courier import UnreachableError, last_line
from gputui.runs.executors.ray.jobs_api import JobsApi

SKEW_SECONDS = 30.0
PROBE_SECONDS = 30.0
PROBE = (
    "import sys; print('python', sys.version.split()[0]); import torch; "
    "print('torch', torch.__version__, 'nccl', torch.cuda.is_available() and torch.cuda.nccl.version())"
)


def survey(target: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Check the connection and token, the clock, jobs, free GPUs, and the Python and torch of a job."""
    api = JobsApi(target)
    try:
        asked = time.time()
        answer = api.version()
        version = answer.json().get("ray_version")
        yield CheckResult("connection", "pass", f"Ray {version} at {api.address}")
        date = email.utils.parsedate_tz(answer.date or "")
        there = asked if date is None else email.utils.mktime_tz(date)
        skew = max(0.0, abs(asked - there) - 1.0)
        yield CheckResult("clock", "pass" if skew < SKEW_SECONDS else "warn", f"{skew:.0f} s from this machine's")
        jobs = api.call("GET", "/api/jobs/")
        listed = jobs.json(list) if jobs.status == 200 else []
        states = [job.get("status") for job in listed if isinstance(job, dict)]
        yield CheckResult("jobs", "pass", f"{states.count('RUNNING')} run, {states.count('PENDING')} wait")
        yield _free(api)
        yield from _probed(api, target)
    except UnreachableError as error:
        yield CheckResult("connection", "fail", str(error), "see address and token_file, and whether the head runs")


def _free(api: JobsApi) -> CheckResult:
    status = api.call("GET", "/api/cluster_status")
    try:
        report = status.json()["data"]["clusterStatus"]["loadMetricsReport"]
        used, total = report["usage"].get("GPU") or (0, 0)
        nodes = len(report.get("usageByNode") or ()) or sum(count for _, count in report.get("nodeTypes") or ())
    except (AttributeError, KeyError, TypeError, ValueError, UnreachableError):
        return CheckResult("gpus", "warn", "the cluster does not tell", "see ray status there")
    where = f" on {nodes} node{'s' if nodes != 1 else ''}" if nodes else ""
    return CheckResult("gpus", "pass" if total else "warn", f"{total - used:g} of {total:g} free{where}")


def _probed(api: JobsApi, target: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Run a job without resources that prints what it finds."""
    job = f"gputui-check-{secrets.token_hex(4)}"
    python = str(target.get("python") or "python3")
    script = "\n".join([*target.get("setup", ()), shlex.join(["exec", python, "-c", PROBE])])
    request = {"entrypoint": shlex.join(["bash", "-c", script]), "submission_id": job, "entrypoint_num_cpus": 0.0}
    done = api.submit(request)
    if done.status != 200:
        yield CheckResult("job", "fail", done.words, "see whether jobs may be submitted there")
        return
    deadline = time.monotonic() + PROBE_SECONDS
    record: Mapping[str, Any] = {}
    while time.monotonic() < deadline and record.get("status") not in ("SUCCEEDED", "FAILED", "STOPPED"):
        time.sleep(0.5)
        record = api.job(job) or {}
    text = (api.log(job) or "") if record.get("status") != "PENDING" else ""
    if record.get("status") in ("PENDING", "RUNNING"):
        api.stop(job)
        has_not = "begun" if record.get("status") == "PENDING" else "ended"
        yield CheckResult("job", "warn", f"has not {has_not} within {PROBE_SECONDS:.0f} s", "the cluster may be full")
        return
    api.delete(job)
    words = {
        line.split()[0]: line.split(" ", 1)[1] for line in text.splitlines() if line.startswith(("python ", "torch "))
    }
    remedy = "python: names the training environment's interpreter there"
    last = last_line(text) or "nothing was printed"
    found = words.get("python")
    yield CheckResult("python", "pass" if found else "fail", found or f"{python}: {last}", remedy)
    yield CheckResult("torch", "pass" if "torch" in words else "warn", words.get("torch", f"none: {last}"), remedy)
