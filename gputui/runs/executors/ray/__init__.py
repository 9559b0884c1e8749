"""Ray: an attempt is one job of the Jobs API, used by plain HTTP, without the ray package.

In: an attempt's folder. Out: the files of the contract. Read first: jobs_api.py (what is
submitted), then ray_runner.py.
"""

from __future__ import annotations

import email.utils
import re
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputui.core.units import count_of
from gputui.runs.checks import CheckResult, graded
from gputui.runs.executors.base import RunnerExecutor
from gputui.runs.executors.commands import UnreachableError, last_line
from gputui.runs.executors.ray.jobs_api import JobsApi, preview
from gputui.runs.executors.ssh import judge_clock

if TYPE_CHECKING:
    from gputui.runs.command import Launch
    from gputui.runs.spec import RunSpec

PROBE_SECONDS = 30.0  # an idle cluster starts a job in a few
PROBE = (
    "import sys; print('python', sys.version.split()[0]); import torch; "
    "print('torch', torch.__version__, 'nccl', torch.cuda.is_available() and torch.cuda.nccl.version())"
)
REMEDY = "set python: of the target to the training environment's interpreter there"


class RayExecutor(RunnerExecutor):
    """Jobs of a Ray cluster."""

    runner = Path(__file__).with_name("ray_runner.py")

    def sees_checkpoints(self, target: Mapping[str, Any]) -> bool:
        return bool(target.get("shared"))

    def clear(self, folder: Path, target: Mapping[str, Any]) -> None:
        from gputui.runs.executors.ray.ray_runner import remove_run_folder

        if not target.get("shared"):
            remove_run_folder(folder, target)

    def preview_script(self, spec: RunSpec, launch: Launch) -> str:
        return preview(self.preview_plan(spec, launch), self.preview_folder(spec, launch))

    def survey(self, target: Mapping[str, Any]) -> Iterator[CheckResult]:
        """Check the connection and token, the clock, jobs, free GPUs, and the Python and torch of a
        job."""
        api = JobsApi(target)
        try:
            asked_at = time.time()
            answer = api.call("GET", "/api/version")
            yield CheckResult("connection", "pass", f"Ray {answer.json().get('ray_version')} at {api.address}")
            date = email.utils.parsedate_tz(answer.date or "")
            printed = "" if date is None else str(email.utils.mktime_tz(date))
            yield judge_clock(printed, asked_at)
            listed = api.call("GET", "/api/jobs/").json(list)
            states = [job.get("status") for job in listed if isinstance(job, dict)]
            yield CheckResult("jobs", "pass", f"{states.count('RUNNING')} run, {states.count('PENDING')} wait")
            yield _free(api)
            yield from _probed(api, target)
        except UnreachableError as error:
            yield CheckResult("connection", "fail", str(error), "see address and token_file, and whether the head runs")


def _free(api: JobsApi) -> CheckResult:
    try:
        report = api.call("GET", "/api/cluster_status").json()["data"]["clusterStatus"]["loadMetricsReport"]
        used, total = report["usage"].get("GPU") or (0, 0)
    except (AttributeError, KeyError, TypeError, ValueError, UnreachableError):
        return CheckResult("gpus", "warn", "the cluster does not tell", "see ray status there")
    nodes = len(report.get("usageByNode") or ())
    where = f" on {count_of(nodes, 'node')}" if nodes else ""
    return graded("gpus", f"{total - used:g} of {total:g} free{where}", warns=not total)


def _probed(api: JobsApi, target: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Check Python and torch by a job without resources that prints what it finds."""
    job = f"gputui-check-{secrets.token_hex(4)}"
    python = str(target.get("python") or "python3")
    script = "\n".join([*target.get("setup", ()), shlex.join(["exec", python, "-c", PROBE])])
    entrypoint = shlex.join(["bash", "-c", script])
    done = api.submit({"entrypoint": entrypoint, "submission_id": job, "entrypoint_num_cpus": 0})
    if done.status != 200:
        yield CheckResult("job", "fail", done.words, "see whether jobs may be submitted there")
        return
    try:
        state = _awaited_state(api, job)
        printed = api.log(job) or ""
    finally:
        with suppress(UnreachableError):
            api.stop(job)
            api.call("DELETE", f"/api/jobs/{job}")
    if state in ("PENDING", "RUNNING"):
        late = "begun" if state == "PENDING" else "ended"
        yield CheckResult("job", "warn", f"has not {late} within {PROBE_SECONDS:.0f} s", "the cluster may be full")
        return
    versions = dict(re.findall(r"(?m)^(python|torch) (.+)$", printed))
    last = last_line(printed) or "nothing was printed"
    version = versions.get("python", f"{python}: {last}")
    yield graded("python", version, REMEDY, fails="python" not in versions)
    yield graded("torch", versions.get("torch", f"none: {last}"), REMEDY, warns="torch" not in versions)


def _awaited_state(api: JobsApi, job: str) -> str | None:
    """The state of a job at its end, or when the time is over; None for one that is not known."""
    deadline = time.monotonic() + PROBE_SECONDS
    state = None
    while time.monotonic() < deadline and state not in ("SUCCEEDED", "FAILED", "STOPPED"):
        time.sleep(0.5)
        state = (api.job(job) or {}).get("status")
    return state
