"""The runner, the program that runs an attempt on a remote target: it submits once, reports,
forwards a stop, and writes exit.json at the end.

It may be killed at any line: its successor continues from the attempt's folder.
On the target the shim runs in ``attempts/<n>/remote``, so that its records are not taken for the
runner's own. Read first: `RemoteRunner.run`, then `RemoteRunner.poll`. What is known, in the order in which
it is written:

    submit.json      the token of the one submission; is_accepted: without the job's number
    handle.json      the job that serves the attempt
    stop.json        a person's request to stop
    placement.json   the job's newest state, for the agent
    closing.json     the end as it is known, while the last files are fetched
    exit.json        the end, which nothing follows
    remote/claim        the job that has begun the attempt; a later job ends at once
    remote/over         no job may begin any more
    remote/started.json, remote/exit.json    the shim's records on the target
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import re
import secrets
import signal
import sys
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from gputui.runs.executors import remote
from gputui.runs.executors.commands import (
    MissingProgramError,
    TargetRefusalError,
    UnreachableError,
    client_environment,
    last_line,
)
from gputui.runs.executors.job_status import JobClock, JobStatus, ended_by_itself, recorded_seconds
from gputui.runs.identity import identify
from gputui.runs.shim import SHIM_FILES
from gputui.runs.shim_agent import start_agent
from gputui.runs.shim_records import read_record
from gputui.runs.shim_signals import awaited_signal
from gputui.runs.submission import write_private

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
LOOK_SECONDS = 0.5  # how much later an end is noticed on a shared file system
MAX_PAUSE_SECONDS = 60.0  # a target that answers again is noticed within a minute
# A person who stops a run waits for the next contact.
MAX_PAUSE_OF_STOP_SECONDS = 5.0
# After a stop at once, a target that does not answer for this long is given up.
GIVE_UP_SECONDS = 60.0
# A job that does not end when asked is cancelled this long after its grace.
CANCEL_SECONDS = 15.0
# A file of another machine may appear here a little later.
UNSEEN_LOOKS = 3
# Fields of attempt.json that its target does not get.
PRIVATE_FIELDS = ("agent", "client_environment", "lock_files", "workspace")

# The modules of the zipapp that runs on the target, below the package gputui.
PROGRAM_MODULES = (
    "core/files.py", "runs/checkpoint_files.py", "runs/checkpoint_formats.py", "runs/checkpoint_names.py",
    *(f"runs/{file.name}" for file in SHIM_FILES), "runs/executors/remote.py", "runs/executors/remote_checkpoints.py",
    "runs/executors/slurm/nodes.py",
)  # fmt: skip
PROGRAM_MAIN = "from gputui.runs.executors.remote import main\n\nraise SystemExit(main())\n"


STOPPED_BEFORE = {"code": None, "signal": None, "stop_requested": True}
"""exit.json of an attempt that was stopped before its job was submitted."""


def zipapp() -> bytes:
    """The program that runs on the target, the same bytes each time."""
    package = Path(remote.__file__).parents[2]
    folders = sorted({str(parent) for module in PROGRAM_MODULES for parent in Path("gputui", module).parents} - {"."})
    files = {"__main__.py": PROGRAM_MAIN, **{f"{folder}/__init__.py": "" for folder in folders}}
    files |= {f"gputui/{module}": (package / module).read_text("utf-8") for module in PROGRAM_MODULES}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return content.getvalue()


class RemoteRunner(ABC):
    """The base class of runners. A subclass submits, finds, signals and cancels jobs of one kind of target.

    Attributes:
        folder: the attempt's folder.
        remote: in it the folder of the target's files.
        plan: attempt.json.
        target: the target's section in it.
        began: when this runner began (UTC unix seconds).
        stop: the request to stop, as stop.json has it; None without one.
        clock: how long the job waited and ran.
        status: the job's, at the newest contact; None until it is submitted or found.
        nodes: the names of those that the job got.
        has_end: the record of an end is here, which brought the next contact forward.
        unseen_looks: how many have found that the job ended and left no record.
        is_start_noted: started.json says when the command began.
        placement: placement.json as this runner wrote it last; None before it has.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.remote = folder / "remote"
        self.plan: dict[str, Any] = json.loads((folder / "attempt.json").read_text("utf-8"))
        self.target: Mapping[str, Any] = self.plan["target"]
        self.began = time.time()
        self.contacts = Contacts(float(self.target.get("poll", 2.0)))
        self.stop: dict[str, Any] | None = read_record(folder / "stop.json")
        self.clock = JobClock.of(read_record(folder / "placement.json"))
        self.status: JobStatus | None = None
        self.nodes: tuple[str, ...] = ()
        self.has_end = False
        self.unseen_looks = 0
        self.is_start_noted = False
        self.placement: dict[str, Any] | None = None

    def reach(self) -> None:  # noqa: B027 - sending files reaches the others
        """Ask the target whether it answers, before anything is handed to it: until then, a stop
        needs no answer. Raises UnreachableError and MissingProgramError."""

    @abstractmethod
    def submit(self, token: str) -> str | None:
        """Submit the attempt so that `jobs` finds it by ``token``; returns the job, None if the
        target accepted it without naming it. Raises UnreachableError and TargetRefusalError."""

    @abstractmethod
    def jobs(self, token: str) -> list[JobStatus]:
        """Every job of the token that the target lists, oldest first. Raises UnreachableError."""

    def unlisted_status(self, job: str) -> JobStatus | None:
        """The status of a job that `jobs` does not list; None if the target has forgotten it. Raises
        UnreachableError, also if its answers contradict each other."""
        return None

    @abstractmethod
    def signal_job(self, job: str, *, at_once: bool) -> None:
        """Ask a running job to end its command, with or without its grace. Raises UnreachableError."""

    @abstractmethod
    def cancel(self, job: str) -> None:
        """Cancel a job. Raises UnreachableError."""

    def send(self) -> None:
        """Send the target's files: on a shared file system, to the attempt's folder. Raises
        UnreachableError, TargetRefusalError and OSError."""
        self.remote.mkdir(mode=0o700, exist_ok=True)
        plan = {name: value for name, value in self.plan_to_send().items() if name not in PRIVATE_FIELDS}
        plan |= {"lock_files": [], "output": f"../{self.plan['output']}"}
        write_private(self.remote / "attempt.json", plan)
        (self.remote / remote.PROGRAM).write_bytes(zipapp())

    def plan_to_send(self) -> dict[str, Any]:
        """attempt.json as its job reads it."""
        return self.plan

    def fetch(self) -> None:  # noqa: B027 - a shared file system needs nothing
        """Fetch the files that the target wrote. Raises UnreachableError."""

    def drain(self) -> None:  # noqa: B027 - a shared file system needs nothing
        """Fetch all remaining files of an attempt that ended on the target. Raises
        UnreachableError."""

    def mark_over(self) -> None:
        """Make any later job of the attempt end at once. Raises UnreachableError."""
        (self.remote / remote.OVER).touch()

    @property
    def remote_folder(self) -> str:
        """The attempt's folder as its job sees it."""
        return str(self.remote)

    def run(self) -> None:
        """Run the attempt to its end. The caller must have blocked SIGNALS, which it waits for."""
        # Held, because never closed, until this process has ended.
        descriptor = os.open(self.folder / "attempt.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        if (self.folder / "exit.json").exists():
            return
        self.note_start(None)
        while not self.poll():
            self.wait(LOOK_SECONDS)
        if self.stop is None:
            start_agent(self.plan.get("agent"))

    def wait(self, seconds: float) -> None:
        """Sleep, or accept a stop request."""
        number = awaited_signal(SIGNALS, seconds)
        if number is None:
            return
        at_once = number == signal.SIGUSR2
        if self.stop is None or (at_once and not self.stop["at_once"]):
            self.stop = {"at": time.time(), "at_once": at_once, "asked": False}
            write_private(self.folder / "stop.json", self.stop)
            self.contacts.due_at = 0.0
            self.contacts.failures = 0

    def poll(self) -> bool:
        """Do what is due; True once the attempt is over."""
        now = time.monotonic()
        asked_at = time.time()
        if not self.has_end and self.status is not None and ended_by_itself(read_record(self.remote / "exit.json")):
            self.has_end = True
            self.contacts.due_at = min(self.contacts.due_at, now + 1.0)
        if now < self.contacts.due_at:
            return False
        try:
            is_over = self.attend()
            self.contacts.succeed(now, asked_at)
        except (UnreachableError, OSError) as error:
            # An OSError is a full disk or quota of this machine, which may be freed.
            self.clock.counted_at = None
            self.contacts.problem = str(error)
            is_over = self.is_given_up(asked_at) and self.give_up()
            max_pause_seconds = MAX_PAUSE_SECONDS
            if self.stop is not None:
                max_pause_seconds = MAX_PAUSE_OF_STOP_SECONDS
            self.contacts.fail(now, max_pause_seconds)
        except TargetRefusalError as error:
            self.end({"code": None, "signal": None, "error": str(error)})
            return True
        if not is_over:
            with contextlib.suppress(OSError):
                self.report()
        return is_over

    def attend(self) -> bool:
        """Submit the job or update its status; True once the attempt is over."""
        ticket = read_record(self.folder / "submit.json")
        listed: list[JobStatus] = []
        if ticket is not None:
            listed = self.jobs(str(ticket["token"]))
        elif self.stop is not None:
            return self.end(STOPPED_BEFORE)
        else:
            ticket = self.hand_over()
        token = str(ticket["token"])
        handle = (read_record(self.folder / "handle.json") or {}).get("job")
        if handle is None and not listed:
            self.fetch()
            if self.claimed() is None and self.stop is not None:
                # A submission of an earlier runner may still reach the target.
                self.mark_over()
                return self.end(STOPPED_BEFORE)
            if self.claimed() is None and not ticket.get("is_accepted"):
                handle = self.submit_once(ticket)
            listed = self.jobs(token)
        self.fetch()
        self.take_status(self.status_of(self.chosen_job(handle, listed), listed))
        self.pass_stop_on()
        return self.check_end(token)

    def hand_over(self) -> dict[str, Any]:
        """Send the target's files, and return the ticket of a submission. Raises UnreachableError and
        TargetRefusalError."""
        # The first answer may take minutes if much code is sent.
        self.report()
        try:
            self.reach()
            self.send()
        except MissingProgramError as error:
            where = "on the PATH of the shell that launched it"
            raise TargetRefusalError(f"{error}; it is not {where}, or not on that of the target") from error
        ticket = {"token": secrets.token_hex(8), "at": time.time()}
        write_private(self.folder / "submit.json", ticket)
        return ticket

    def submit_once(self, ticket: Mapping[str, Any]) -> str | None:
        """Submit the job, and note that; returns the job, None if the target did not name it. Raises UnreachableError
        and TargetRefusalError."""
        job = self.submit(str(ticket["token"]))
        if job is None:
            write_private(self.folder / "submit.json", {**ticket, "is_accepted": True})
        else:
            write_private(self.folder / "handle.json", {"job": job})
        return job

    def take_status(self, status: JobStatus) -> None:
        """Take over a new status of the job, and count the time in the state before."""
        former_state = None
        if self.status is not None:
            former_state = self.status.state
        self.status = status
        self.clock.count(former_state, time.time())
        self.nodes = status.nodes or self.nodes

    def chosen_job(self, handle: str | None, listed: Sequence[JobStatus]) -> str:
        """The job that serves the attempt; others that are ``listed`` are cancelled. If a submission
        that seemed lost was not, it is the first to begin. Raises UnreachableError."""
        numbers = [status.job for status in listed]
        job = self.claimed()
        if not job:
            job = handle
            if numbers and handle not in numbers:
                job = numbers[0]
        if job is None:
            raise UnreachableError("it accepted the job without its number, and does not list it yet")
        if handle != job:
            write_private(self.folder / "handle.json", {"job": job})
        for rival in listed:
            if rival.job != job and rival.state != "ended":
                self.cancel(rival.job)
        return job

    def status_of(self, job: str, listed: Sequence[JobStatus]) -> JobStatus:
        """The state of a job, ``listed`` or not. Raises UnreachableError."""
        status = next((status for status in listed if status.job == job), None)
        if status is None and not ended_by_itself(read_record(self.remote / "exit.json")):
            status = self.unlisted_status(job)
        return status or JobStatus(job, "ended", "its target has forgotten it")

    def claimed(self) -> str | None:
        """The job that has begun the attempt, or None."""
        return text_of(self.remote / "claim") or None

    def check_end(self, token: str) -> bool:
        """Handle the target's records and the job's status; True once the attempt is over."""
        assert self.status is not None
        started, ended = (read_record(self.remote / name) for name in ("started.json", "exit.json"))
        if started is not None and not self.is_start_noted:
            self.note_start(started.get("at"))
        if ended_by_itself(ended):
            # A requeued job finds that record and ends.
            self.drain()
            return self.end(self.outcome(self.status, ended, started is not None))
        closing = read_record(self.folder / "closing.json")
        if closing is None:
            if self.status.state != "ended":
                self.unseen_looks = 0
                return False
            self.unseen_looks += 1
            if ended is None and self.unseen_looks < UNSEEN_LOOKS:
                # Its last files may not be visible here yet.
                return False
            self.drain()
            closing = self.outcome(self.status, ended, started is not None)
            write_private(self.folder / "closing.json", closing)
        return self.close(token, self.status.job) and self.end(closing)

    def close(self, token: str, job: str) -> bool:
        """Prevent a job that the target reports as ended from being requeued, for it would run
        beside the next attempt's job. True once it is gone."""
        self.mark_over()
        self.cancel(job)
        return self.status_of(job, self.jobs(token)).state == "ended"

    def outcome(self, status: JobStatus, ended: Mapping[str, Any] | None, has_begun: bool) -> dict[str, Any]:
        """The content of exit.json: the shim's record, if any, and what else ended the job."""
        record: dict[str, Any] = dict(ended or {"code": None, "signal": None}) | {"target": self.target["name"]}
        if self.stop is not None:
            # It may have ended by itself before it was asked.
            record["stop_requested"] = not ended_by_itself(ended)
            return record
        ended_by = record.get("ended_by") or status.ended_by
        if ended_by is None and ended is not None and ended.get("stop_requested"):
            # Asked to end, but neither by a person nor for its time limit: the target preempted it.
            ended_by = "preempted"
        if ended_by is not None:
            record |= {"ended_by": ended_by, "ended_reason": record.get("ended_reason") or status.reason}
        elif ended is None and not has_begun:
            # What the job printed before the attempt began.
            printed = last_line(text_of(self.remote / "job.log"))
            record["error"] = printed or status.reason or "its job ended before it began"
            if (reason := self.unwritable()) is not None:
                record["error"] = f"nothing can be written on {self.target['name']}: {reason}"
        elif ended is None:
            record |= {"ended_by": "node_fail", "ended_reason": status.reason or "its job ended without a record"}
        return record

    def unwritable(self) -> str | None:
        """The reason why the attempt's folder on the target is not writable; None if it is, or if
        that is unknown."""
        return remote.unwritable(self.remote)

    def pass_stop_on(self) -> None:
        """Forward a stop request: a pending job is cancelled, a running one may save first."""
        if self.stop is None or self.status is None or self.status.state == "ended":
            return
        if ended_by_itself(read_record(self.remote / "exit.json")):
            return
        seconds_to_end = CANCEL_SECONDS
        if not self.stop["at_once"]:
            seconds_to_end += float(self.plan["grace_seconds"])
        has_begun = (self.remote / "started.json").exists() and self.status.state in ("running", "suspended", "ending")
        if not has_begun or time.time() - float(self.stop["at"]) > seconds_to_end:
            self.cancel(self.status.job)
        elif not self.stop["asked"]:
            self.signal_job(self.status.job, at_once=bool(self.stop["at_once"]))
            self.stop["asked"] = True
            write_private(self.folder / "stop.json", self.stop)

    def is_given_up(self, now: float) -> bool:
        """Return whether a person stopped the run at once, and the target has not answered for
        GIVE_UP_SECONDS since (``now`` is UTC unix seconds)."""
        if self.stop is None or not self.stop["at_once"]:
            return False
        return now - max(float(self.stop["at"]), self.contacts.newest_at or 0.0) >= GIVE_UP_SECONDS

    def give_up(self) -> bool:
        """End the attempt without its target. Returns True."""
        handle = (read_record(self.folder / "handle.json") or {}).get("job")
        record = {**STOPPED_BEFORE, "target": self.target["name"], "given_up": self.contacts.problem, "job": handle}
        write_private(self.folder / "exit.json", {"started_at": self.began, "ended_at": time.time(), **record})
        return True

    def note_start(self, at: float | None) -> None:
        """Write started.json: this process, when the command began, and the checkpoint that the
        target chose."""
        runner = identify(os.getpid())
        assert runner is not None
        record = {"shim_pid": runner.pid, "shim_start_ticks": runner.start_ticks, "boot_id": runner.boot_id, "at": at}
        chosen = read_record(self.remote / remote.RESUMED)
        if chosen is not None:
            record["resumed_from"] = chosen["path"]
        write_private(self.folder / "started.json", record)
        self.is_start_noted = at is not None

    def report(self) -> None:
        """Write placement.json if it has changed."""
        status = self.status or JobStatus("", "submitting")
        starts = [*map(json.loads, text_of(self.remote / "starts.jsonl").splitlines())]
        ends = [*(start.get("exit") for start in starts), read_record(self.remote / "exit.json")]
        is_requeued = status.state == "pending" and self.claimed() is not None
        record = {
            "job": status.job or None,
            "state": "requeued" if is_requeued else status.state,
            "reason": status.reason,
            "expected_start": status.expected_start,
            "nodes": list(status.nodes),
            "limit_at": status.limit_at,
            "restarts": len(starts),
            "limit_restarts": sum(start.get("why") == remote.TIME_LIMIT for start in starts),
            "gpus": self.plan["asks"]["gpus"] * self.plan.get("nodes", 1),
            "queued_seconds": self.clock.queued_seconds,
            "ran_seconds": self.clock.corrected_by([*map(recorded_seconds, ends)]),
            "contact_at": self.contacts.newest_at,
            "poll_seconds": self.contacts.poll_seconds,
            "problem": self.contacts.problem,
        }
        if record != self.placement:
            write_private(self.folder / "placement.json", record)
            self.placement = record

    def end(self, record: Mapping[str, Any]) -> bool:
        """Write exit.json. Returns True: the attempt is over."""
        if self.status is not None:
            self.status = JobStatus(self.status.job, "ended", self.status.reason, nodes=self.nodes)
            self.contacts.newest_at = time.time()
            self.contacts.problem = None
            self.report()
        write_private(
            self.folder / "exit.json",
            {"started_at": self.began, "ended_at": time.time(), "stop_requested": False, **record},
        )
        return True


class Contacts:
    """When a target is asked for news, and whether it answers.

    Attributes:
        poll_seconds: the time from one contact to the next.
        due_at: the next contact (monotonic).
        newest_at: the newest one that told all (UTC unix seconds); None before the first.
        problem: why the newest contact failed; None if it did not.
        failures: how many have failed in a row.
        is_behind: some of what the metrics grew by was left at the target, so that the next contact is due at once.
    """

    def __init__(self, poll_seconds: float) -> None:
        self.poll_seconds = poll_seconds
        self.due_at = 0.0
        self.newest_at: float | None = None
        self.problem: str | None = None
        self.failures = 0
        self.is_behind = False

    def succeed(self, now: float, asked_at: float) -> None:
        """Note that the target has answered at ``now`` (monotonic) what it was asked at a time (UTC unix seconds)."""
        self.problem = None
        self.failures = 0
        self.due_at = now
        if not self.is_behind:
            self.newest_at = asked_at
            self.due_at = now + self.poll_seconds

    def fail(self, now: float, max_pause_seconds: float) -> None:
        """Put the next contact off: the more have failed, the longer."""
        self.failures += 1
        self.due_at = now + min(max_pause_seconds, self.poll_seconds * 2 ** min(self.failures - 1, 6))


def text_of(path: Path) -> str:
    """The text of a file of the target; empty if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def python_of(plan: Mapping[str, Any]) -> str:
    """An interpreter on the target: the target's own, else the one of the command."""
    if plan["target"].get("python"):
        return str(plan["target"]["python"])
    first = str(plan["argv"][0])
    if re.fullmatch(r"python[0-9.]*", PurePath(first).name):
        return first
    return "python3"


def serve(runner: Callable[[Path], RemoteRunner]) -> None:
    """The main program of a runner: FOLDER is its only argument."""
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    folder = Path(sys.argv[1])
    take_client_environment(json.loads((folder / "attempt.json").read_text("utf-8")))
    runner(folder).run()


def take_client_environment(plan: Mapping[str, Any]) -> None:
    """Replace this process's `client_environment`, which is that of an agent that may have been
    started long before, by the one of the shell that launched the run."""
    launched_with = plan.get("client_environment")
    if launched_with is not None:
        for name in client_environment(os.environ):
            del os.environ[name]
        os.environ.update(launched_with)
