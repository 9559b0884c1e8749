"""The program of one attempt on a Ray cluster: ray_runner.py FOLDER."""

from __future__ import annotations

import hashlib
import io
import re
import secrets
import urllib.parse
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gputui.runs.executors import remote
from gputui.runs.executors.commands import TargetRefusalError, UnreachableError
from gputui.runs.executors.job_status import EndedBy, JobStatus
from gputui.runs.executors.mirror import RUN_FOLDER, MirrorRunner
from gputui.runs.executors.ray.jobs_api import SENT, JobsApi, entry_script, job_request, on_node, submission_id
from gputui.runs.executors.remote_runner import python_of, serve
from gputui.runs.shim_records import read_record
from gputui.runs.submission import write_private

# The default upload limit of a cluster (GCS_STORAGE_MAX_SIZE).
MAX_PACKAGE_BYTES = 100 << 20
UPLOAD_SECONDS = 600.0  # Ray's limit of 500 MiB at 1 MB/s
# Lines of the log's end to request: more if the first new one is not among them, and finally all.
LINES = (50, 2000)
STATES = {"PENDING": "pending", "RUNNING": "running", "STOPPED": "ended", "SUCCEEDED": "ended", "FAILED": "ended"}
_NODE_IS_GONE = ("JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE")
_WAITED_TOO_LONG = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"


class RayRunner(MirrorRunner):
    """Runs an attempt as a job of the cluster. Without shared files, the job's output carries all
    data back.

    A cluster fails a job that is pending for too long (15 minutes by default). It is then submitted
    again, with a number appended to its name.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_shared = bool(self.target.get("shared"))
        self.api = JobsApi(self.target)
        self.code = self.run_dir / "code.zip"
        self.name: str | None = None
        self.record: Mapping[str, Any] = {}
        self.next_frame = int((read_record(folder / "frames.json") or {}).get("next", 0))

    @property
    def remote_folder(self) -> str:
        if self.is_shared:
            return str(self.remote)
        return f"{self.wanted_root}/attempts/{self.plan['attempt']}/remote"

    # --- what is sent -------------------------------------------------------------------------------------------------

    def plan_to_send(self) -> dict[str, Any]:
        if self.is_shared:
            return self.plan
        return self.plan_there(remote.RUN_HERE, remote.CODE_HERE)

    def send(self) -> None:
        if not self.is_shared and not (self.plan.get("keeps_code") and self.code.exists()):
            self.keep_code()
        super().send()

    def keep_code(self) -> None:
        """Package the current working directory."""
        temporary = self.code.with_name("code.zip.new")
        temporary.touch(mode=0o600)
        names: Sequence[str] = ()
        if self.workdir is not None:
            names = self.code_files(self.workdir)
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                # No file times: an archive cannot hold one before 1980.
                entry = zipfile.ZipInfo(name)
                path = Path(self.plan["cwd"], name)
                entry.external_attr = (path.stat().st_mode & 0xFFFF) << 16
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
        temporary.replace(self.code)

    def package(self, job: str) -> str:
        """Upload the code and the programs of the job; returns the URI. Raises UnreachableError and
        TargetRefusalError."""
        content = io.BytesIO(self.code.read_bytes())
        with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as archive:
            for name in ("attempt.json", remote.PROGRAM):
                archive.writestr(zipfile.ZipInfo(f"{SENT}/{name}"), (self.remote / name).read_bytes())
            archive.writestr(zipfile.ZipInfo(f"{SENT}/job.sh"), entry_script(self.plan, self.remote_folder, job))
        data = content.getvalue()
        if len(data) > MAX_PACKAGE_BYTES:
            size = f"{len(data) >> 20} MiB of {MAX_PACKAGE_BYTES >> 20}"
            raise TargetRefusalError(f"the code is too large to be sent ({size}): ignore data in git, or share files")
        name = f"_ray_pkg_{hashlib.sha256(data).hexdigest()[:32]}.zip"
        path = f"/api/packages/gcs/{name}"
        if self.api.call("GET", path).status != 200:
            done = self.api.call("PUT", path, data, UPLOAD_SECONDS)
            if done.status != 200:
                raise TargetRefusalError(f"the code was not taken: {done.words}")
        return f"gcs://{name}"

    # --- the job ------------------------------------------------------------------------------------------------------

    def reach(self) -> None:
        self.api.call("GET", "/api/version")

    def submit(self, token: str) -> str:
        job = submission_id(self.plan, token)
        self.submit_as(job, job)
        return job

    def submit_as(self, name: str, job: str) -> None:
        """Submit the attempt under a name; ``job`` is the name by which it claims the attempt."""
        if self.is_shared:
            (self.remote / "job.sh").write_text(entry_script(self.plan, self.remote_folder, job), "utf-8")
            package = ""
        else:
            package = self.package(job)
        request = job_request(self.plan, self.remote_folder, name, package)
        write_private(self.remote / "request.json", request)
        done = self.api.submit(request)
        if not done.is_accepted:
            if done.status >= 500:
                raise UnreachableError(f"not taken ({done.status}): {done.words}")
            raise TargetRefusalError(done.words)

    def jobs(self, token: str) -> list[JobStatus]:
        job = name = submission_id(self.plan, token)
        record = self.api.job(job)
        number = 1
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
        self.name = name
        self.record = record
        return [self.state_of(job)]

    def state_of(self, job: str) -> JobStatus:
        """The status of a job from its last record."""
        word = self.record.get("status")
        node = self.node()
        state = STATES.get(str(word), "pending")
        if state == "pending" and self.stop is not None and self.stop.get("is_withdrawn"):
            state = "ended"
        is_lost = self.record.get("error_type") in _NODE_IS_GONE
        # The end of the job's output follows, which is shown as its log.
        reason = re.split(r"\n|, last available logs", str(self.record.get("message") or "").strip())[0][:300] or None
        if state != "pending" and word != "FAILED":
            reason = None
        ended_by: EndedBy | None = None
        if word == "STOPPED":
            ended_by = "cancelled"
        elif is_lost:
            ended_by = "node_fail"
        nodes = () if node is None else (node,)
        return JobStatus(job, state, reason, nodes=nodes, ended_by=ended_by)

    def node(self) -> str | None:
        """The address of the job's node."""
        return urllib.parse.urlsplit(str(self.record.get("driver_agent_http_address") or "")).hostname

    def signal_job(self, job: str, *, at_once: bool) -> None:
        node = self.node()
        if node is None:
            self.cancel(job)
            return
        number = "12" if at_once else "15"
        folder = str((read_record(self.folder / "frames.json") or {}).get("folder") or self.remote_folder)
        argv = [python_of(self.plan), "-I", "-S", f"{folder}/{remote.PROGRAM}", "signal", folder, number]
        # Ray's own stop signals every process of a job at once, data loaders included, so that a
        # rank could not finish its step.
        done = self.api.submit(on_node(argv, f"{self.name or job}-signal-{number}", node))
        if not done.is_accepted:
            raise UnreachableError(f"not asked to end: {done.words}")

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
        """Apply the new lines of the output. Each states the offsets of its data, so none is
        applied twice."""
        if self.is_shared or self.record.get("status") not in ("RUNNING", "STOPPED", "SUCCEEDED", "FAILED"):
            return
        before = self.next_frame
        folder = None
        for frame in self.new_frames():
            if frame["number"] == self.next_frame:
                self.apply(frame["grown"], frame["whole"])
                self.next_frame = self.next_frame + 1
                folder = frame["folder"]
        if self.next_frame > before:
            write_private(self.folder / "frames.json", {"next": self.next_frame, "folder": folder})

    def new_frames(self) -> list[dict[str, Any]]:
        """The records in the log from the first new one on, or from an earlier one. Raises
        UnreachableError."""
        assert self.name is not None
        for count in LINES:
            # The last line may be incomplete.
            lines = (self.api.last_lines(self.name, count) or "").split("\n")[:-1]
            frames = [frame for line in lines if (frame := remote.framed(line))]
            if frames and frames[0]["number"] <= self.next_frame:
                return frames
        return [frame for line in self.log(self.name).split("\n")[:-1] if (frame := remote.framed(line))]

    def log(self, name: str) -> str:
        """The whole output of the job; that of a lost node is lost. Raises UnreachableError."""
        text = self.api.log(name)
        if text is None and self.record.get("error_type") not in _NODE_IS_GONE:
            raise UnreachableError(f"no log of {name}")
        return text or ""

    def drain(self) -> None:
        self.fetch()
        # No name: the cluster knew nothing of the job since this runner began.
        if self.name is not None and not (self.remote / "started.json").exists():
            text = "\n".join(line for line in self.log(self.name).splitlines() if remote.framed(line) is None)
            (self.remote / "job.log").write_text(re.sub(r"(?m)^Running entrypoint for job .*\n?", "", text), "utf-8")


def remove_run_folder(folder: Path, target: Mapping[str, Any]) -> None:
    """Submit a job on each node of a run that removes its folder, as named by the attempts'
    records. Raises OSError."""
    for path in folder.glob("attempts/*/frames.json"):
        root = str(Path(str((read_record(path) or {}).get("folder"))).parents[2])
        if not RUN_FOLDER.fullmatch(root):
            continue
        placed = read_record(path.with_name("placement.json")) or {}
        for node in placed.get("nodes") or ():
            request = on_node(["rm", "-rf", "--", root], f"gputui-remove-{secrets.token_hex(4)}", str(node))
            try:
                done = JobsApi(target).submit(request)
            except UnreachableError as error:
                raise OSError(str(error)) from error
            if done.status != 200:
                raise OSError(done.words)


if __name__ == "__main__":
    serve(RayRunner)
