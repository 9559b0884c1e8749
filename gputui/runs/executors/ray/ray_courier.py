"""The program of one attempt on a Ray cluster: ray_courier.py FOLDER."""

from __future__ import annotations

import hashlib
import io
import itertools
import re
import secrets
import urllib.parse
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gputui.runs.executors import far
from gputui.runs.executors.courier import EndedBy, JobStatus, TargetRefusalError, UnreachableError, python_of, serve
from gputui.runs.executors.mirror import MirrorCourier
from gputui.runs.executors.ray.jobs_api import SENT, JobsApi, entry_script, job_request, on_node, submission_id
from gputui.runs.submission import write_private

CODE = "code.zip"
# The default upload limit of a cluster (GCS_STORAGE_MAX_SIZE).
MAX_PACKAGE_BYTES = 100 << 20
# Lines of the log's end to request: more if the first new one is not among them, and finally all.
LINES = (50, 2000)
# …/<tag>/<run>: nothing else is ever removed.
_ROOT = re.compile(r"/.+/[0-9a-f]{8}/[A-Za-z0-9][^/]*")
STATES = {"PENDING": "pending", "RUNNING": "running", "STOPPED": "ended", "SUCCEEDED": "ended", "FAILED": "ended"}
_NODE_IS_GONE = ("JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE")
_WAITED_TOO_LONG = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"


class RayCourier(MirrorCourier):
    """Runs an attempt as a job of the cluster. Without shared files, the job's output carries all data back.

    A cluster fails a job that is pending for too long (15 minutes by default). It is then submitted again, with a
    number appended to its name.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_shared = bool(self.target.get("shared"))
        self.api = JobsApi(self.target)
        self.name: str | None = None
        self.record: Mapping[str, Any] = {}
        self.next_frame = int((far.read_record(folder / "frames.json") or {}).get("next", 0))

    @property
    def far_folder(self) -> str:
        """The attempt's folder on its node; without shared files below the home directory unless absolute."""
        if self.is_shared:
            return str(self.far)
        tag = hashlib.sha256(str(self.run_dir).encode()).hexdigest()[:8]
        base = self.target.get("folder") or "gputui-runs"
        return f"{base}/{tag}/{self.run_dir.name}/attempts/{self.plan['attempt']}/far"

    # --- what is sent -------------------------------------------------------------------------------------------------

    def send(self) -> None:
        local = self.plan
        if not self.is_shared:
            self.keep_code()
            self.plan = self.plan_there(far.RUN_HERE, far.CODE_HERE)
        try:
            super().send()
        finally:
            self.plan = local

    def keep_code(self) -> None:
        """Package the current working directory, unless the attempt runs the code of an earlier one."""
        path = self.run_dir / CODE
        if self.keeps_code and path.exists():
            return
        temporary = path.with_name(f"{CODE}.new")
        temporary.touch(mode=0o600)
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for workdir in map(Path, self.code_paths(far.CODE_HERE)):
                for name in self.code_files(workdir):
                    # No file times: an archive cannot hold one before 1980.
                    entry = zipfile.ZipInfo(name)
                    entry.external_attr = ((workdir / name).stat().st_mode & 0xFFFF) << 16
                    archive.writestr(entry, (workdir / name).read_bytes(), zipfile.ZIP_DEFLATED)
        temporary.replace(path)

    def package(self, job: str) -> str:
        """Upload the code and the programs of the job; returns the URI. Raises UnreachableError and
        TargetRefusalError."""
        content = io.BytesIO((self.run_dir / CODE).read_bytes())
        with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as archive:
            for name in ("attempt.json", "far.py", "shim.py"):
                archive.writestr(zipfile.ZipInfo(f"{SENT}/{name}"), (self.far / name).read_bytes())
            archive.writestr(zipfile.ZipInfo(f"{SENT}/job.sh"), entry_script(self.plan, self.far_folder, job))
        data = content.getvalue()
        if len(data) > MAX_PACKAGE_BYTES:
            size = f"{len(data) >> 20} MiB of {MAX_PACKAGE_BYTES >> 20}"
            raise TargetRefusalError(f"the code is too large to be sent ({size}): ignore data in git, or share files")
        name = f"_ray_pkg_{hashlib.sha256(data).hexdigest()[:32]}.zip"
        if not self.api.has_package(name):
            done = self.api.upload(name, data)
            if done.status != 200:
                raise TargetRefusalError(f"the code was not taken: {done.words}")
        return f"gcs://{name}"

    # --- the job ------------------------------------------------------------------------------------------------------

    def submit(self, token: str) -> str:
        job = submission_id(self.plan, token)
        self.submit_as(job, job)
        return job

    def submit_as(self, name: str, job: str) -> None:
        """Submit the attempt under a name; ``job`` is the name by which it claims the attempt."""
        package = ""
        if self.is_shared:
            (self.far / "job.sh").write_text(entry_script(self.plan, self.far_folder, job), "utf-8")
        else:
            package = self.package(job)
        request = job_request(self.plan, self.far_folder, name, package)
        write_private(self.far / "request.json", request)
        done = self.api.submit(request)
        if done.status >= 500 and "already exists" not in done.words:
            raise UnreachableError(f"not taken ({done.status}): {done.words}")
        if done.status != 200 and "already exists" not in done.words:
            raise TargetRefusalError(done.words)

    def jobs(self, token: str) -> list[JobStatus]:
        job = submission_id(self.plan, token)
        name, number = job, 1
        record = self.api.job(job)
        if record is None:
            return []
        while record.get("error_type") == _WAITED_TOO_LONG:
            number += 1
            name = f"{job}.{number}"
            again = self.api.job(name)
            if again is None:
                if self.stop is not None:
                    break
                self.submit_as(name, job)
                again = self.api.job(name) or {"status": "PENDING"}
            record = again
        self.name, self.record = name, record
        return [self.state_of(job, record)]

    def state_of(self, job: str, record: Mapping[str, Any]) -> JobStatus:
        """The status of a job from its record in the cluster."""
        state = STATES.get(str(record.get("status")), "pending")
        if state == "pending" and self.stop is not None and self.stop.get("is_withdrawn"):
            state = "ended"
        error_type, message = record.get("error_type"), record.get("message")
        first_line = str(message or "").strip().partition("\n")[0][:300] or None
        ended_by: EndedBy | None = None
        if record.get("status") == "STOPPED":
            ended_by = "cancelled"
        elif error_type in _NODE_IS_GONE:
            ended_by = "node_fail"
        node = self.node()
        is_news = state != "running" and not (state == "ended" and record.get("status") != "FAILED")
        return JobStatus(
            job, state, first_line if is_news else None, nodes=(node,) if node is not None else (), ended_by=ended_by
        )

    def node(self) -> str | None:
        """The address of the job's node."""
        return urllib.parse.urlsplit(str(self.record.get("driver_agent_http_address") or "")).hostname

    def forgotten(self, job: str) -> JobStatus | None:
        return None

    def signal_job(self, job: str, *, at_once: bool) -> None:
        folder, node = self.far_folder, self.node()
        there = far.read_record(self.folder / "frames.json") or {}
        if node is None:
            return self.cancel(job)
        number = 12 if at_once else 15
        folder = str(there.get("folder") or folder)
        words = [python_of(self.plan), "-I", "-S", f"{folder}/far.py", "signal", folder, str(number)]
        # Ray's own stop signals every process of a job at once, data loaders included, so that a rank could not finish
        # its step.
        request = on_node(words, f"{self.name or job}-signal-{number}", node)
        done = self.api.submit(request)
        if done.status != 200 and "already exists" not in done.words:
            raise UnreachableError(f"not asked to end: {done.words}")
        return None

    def mark_over(self) -> None:
        # Without shared files there is no way to; nothing there starts a job twice.
        if self.is_shared:
            super().mark_over()

    def cancel(self, job: str) -> None:
        self.api.stop(self.name or job)
        if self.stop is not None and self.record.get("status") == "PENDING":
            # A pending job stays pending: the cluster ends it when it begins.
            self.stop["is_withdrawn"] = True
            write_private(self.folder / "stop.json", self.stop)

    # --- what comes back ----------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        if not self.is_shared and self.record.get("status") in ("RUNNING", "STOPPED", "SUCCEEDED", "FAILED"):
            self.take(self.lines())

    def lines(self) -> Sequence[str]:
        """The log from the first new line on, or from an earlier one. Raises UnreachableError."""
        assert self.name is not None
        for count in LINES:
            text = self.api.last_lines(self.name, count)
            frames = [] if text is None else [frame for line in text.split("\n")[:-1] if (frame := far.framed(line))]
            if frames and frames[0]["number"] <= self.next_frame and is_gapless(frames):
                return [] if text is None else text.split("\n")[:-1]
        return self.whole_log(self.name).split("\n")[:-1]

    def whole_log(self, name: str) -> str:
        """The whole output of the job; that of a lost node is lost. Raises UnreachableError."""
        text = self.api.log(name)
        if text is None and self.record.get("error_type") not in _NODE_IS_GONE:
            raise UnreachableError(f"no log of {name}")
        return text or ""

    def take(self, lines: Sequence[str]) -> None:
        """Apply the new lines of the output. Each states the offsets of its data, so none is applied twice."""
        before, folder = self.next_frame, None
        for line in lines:
            frame = far.framed(line)
            if frame is not None and frame["number"] == self.next_frame:
                self.apply(frame["grown"], frame["whole"])
                self.next_frame, folder = self.next_frame + 1, frame["folder"]
        if self.next_frame > before:
            write_private(self.folder / "frames.json", {"next": self.next_frame, "folder": folder})

    def drain(self) -> None:
        self.fetch()
        # No name: the cluster knew nothing of the job since this courier began.
        if self.name is not None and not (self.far / "started.json").exists():
            text = "\n".join(line for line in self.whole_log(self.name).splitlines() if far.framed(line) is None)
            (self.far / "job.log").write_text(
                re.sub(r"^Running entrypoint for job .*\n?", "", text, flags=re.M), "utf-8"
            )


def remove_there(folder: Path, target: Mapping[str, Any]) -> None:
    """Submit a job on each node of a run that removes its folder, as named by the attempts' records. Raises OSError."""
    for path in folder.glob("attempts/*/frames.json"):
        root = str(Path(str((far.read_record(path) or {}).get("folder"))).parents[2])
        placed = far.read_record(path.with_name("placement.json")) or {}
        for node in placed.get("nodes") or () if _ROOT.fullmatch(root) else ():
            job = f"gputui-remove-{secrets.token_hex(4)}"
            request = on_node(["rm", "-rf", "--", root], job, str(node))
            try:
                done = JobsApi(target).submit(request)
            except UnreachableError as error:
                raise OSError(str(error)) from error
            if done.status != 200:
                raise OSError(done.words)


def is_gapless(frames: Sequence[Mapping[str, Any]]) -> bool:
    return all(after["number"] == before["number"] + 1 for before, after in itertools.pairwise(frames))


if __name__ == "__main__":
    serve(RayCourier)
