"""Serves an attempt on several nodes of a job, instead of the shim alone. Standard library only, for any
Python from 3.9 on; started from the zipapp of far.py.

far.pyz lead FOLDER
    Runs in the batch step, on the first node, and honours the attempt contract: starts one task on each node by srun,
    forwards a stop to all, ends the others if one fails, and writes exit.json for all.
far.pyz node FOLDER PORT
    A task: runs its node's part by the shim, in ``FOLDER/node-<k>``.

They communicate through srun's standard streams, because shared files may be seen late: signal numbers to the tasks,
JSON records to the lead. Read first: `Lead.run`, then `NodeTask.run`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gputui.runs.executors.far import program, read_record, write_record

# Placeholders in attempt.json, which each node replaces.
NODE_RANK = "{this node's rank}"
FIRST_NODE = "{the first node's address}"
FIRST_PORT = "{the first node's port}"

LOOK_SECONDS = 0.2
# The time that the other nodes get to report their own failure, before they are ended.
PEER_SECONDS = 2.0
# srun waits forever if a node does not answer.
START_SECONDS = 300.0
# The time that the shims need beside their grace period.
END_SECONDS = 30.0
PR_SET_PDEATHSIG = 1
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


class Lead:
    """Runs an attempt on all nodes, for one start of the job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: dict[str, Any] = json.loads((folder / "attempt.json").read_text("utf-8"))
        self.count = int(self.plan["nodes"])
        self.began = time.time()
        self.started: dict[int, dict[str, Any]] = {}
        self.ended: dict[int, dict[str, Any]] = {}
        self.hosts: dict[int, str] = {}
        self.signals: list[int] = []
        self.stop_requested = False
        self.forced = False
        self.peers_at: float | None = None
        self.late_at: float | None = None
        self.is_given_up = False

    def run(self) -> int:
        """Run the attempt to its end; returns the exit code."""
        for number in PASSED_ON:
            signal.signal(number, lambda received, _: self.signals.append(received))
        if not self.claim():
            return 0
        try:
            self.start()
        except OSError as error:
            return self.end({"code": None, "signal": None, "error": f"srun: {error.strerror or error}"})
        self.watch()
        return self.end(self.outcome())

    def claim(self) -> bool:
        """Lock the attempt. Returns False if another process runs it or it has ended."""
        self.lock = os.open(self.folder / "attempt.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return not (self.folder / "exit.json").exists()

    def start(self) -> None:
        # It stays bound, so that no other process gets the port, such as srun for its streams. The first rank can still
        # listen on it, because both set SO_REUSEADDR.
        self.meeting = socket.socket()
        self.meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.meeting.bind(("", 0))
        port = self.meeting.getsockname()[1]
        words = [f"--nodes={self.count}", f"--ntasks={self.count}", "--ntasks-per-node=1", "--distribution=block",
                 "--kill-on-bad-exit=0", "--wait=0", "--mpi=none"]  # fmt: skip
        if os.environ.get("SLURM_CPUS_PER_TASK"):
            # A step does not inherit it from the job.
            words.append(f"--cpus-per-task={os.environ['SLURM_CPUS_PER_TASK']}")
        # A new session: srun would forward a signal of this process's group to every process of every task.
        self.srun = subprocess.Popen(
            ["srun", *words, *program(self.folder, "node", str(self.folder), str(port))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.start_by = time.monotonic() + START_SECONDS

    def watch(self) -> None:
        """Handle records and signals until srun, which outlives all tasks, has ended."""
        assert self.srun.stdout is not None
        rest, is_open = b"", True
        while is_open or self.srun.poll() is None:
            if is_open and select.select([self.srun.stdout], [], [], LOOK_SECONDS)[0]:
                data = os.read(self.srun.stdout.fileno(), 1 << 16)
                is_open = bool(data)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self.take(line)
            elif not is_open:
                time.sleep(LOOK_SECONDS)
            self.pass_on()

    def take(self, line: bytes) -> None:
        """Handle a line of a node: a record, or other output."""
        try:
            record = json.loads(line)
            number = int(record["node"])
        except (ValueError, KeyError, TypeError):
            print(line.decode("utf-8", "replace"), flush=True)  # noqa: T201 - for job.log
            return
        if record.get("started"):
            self.started[number], self.hosts[number] = record["started"], str(record["host"])
            if len(self.started) == self.count:
                first = {**self.started.get(0, {}), "shim_pid": os.getpid()}
                write_record(self.folder / "started.json", first)
        if record.get("exit"):
            self.ended[number] = record["exit"]
            if failed(record["exit"]) and self.peers_at is None:
                # If a node is known to have failed, the others cannot add a reason.
                patience = 0.0 if record["exit"].get("ended_by") else PEER_SECONDS
                self.peers_at = time.monotonic() + patience

    def pass_on(self) -> None:
        """Forward signals, and end nodes that are due."""
        now = time.monotonic()
        while self.signals:
            number = self.signals.pop(0)
            self.stop_requested = True
            self.forced |= number == signal.SIGUSR2
            self.send_signal(signal.SIGUSR2 if number == signal.SIGUSR2 else signal.SIGTERM)
            if self.late_at is None:
                self.late_at = now + float(self.plan["grace_seconds"]) + END_SECONDS
        if self.peers_at is not None and now >= self.peers_at and len(self.ended) < self.count:
            self.peers_at = float("inf")
            self.send_signal(signal.SIGUSR2)
            self.late_at = min(self.late_at or float("inf"), now + END_SECONDS)
        is_stuck = len(self.started) < self.count and now > self.start_by
        if is_stuck or (self.late_at is not None and now > self.late_at):
            self.is_given_up = True
            self.srun.kill()

    def send_signal(self, number: int) -> None:
        """Send a signal to every node's shim."""
        assert self.srun.stdin is not None
        with contextlib.suppress(OSError):
            self.srun.stdin.write(f"{int(number)}\n".encode("ascii"))
            self.srun.stdin.flush()

    def outcome(self) -> dict[str, Any]:
        """The record for exit.json: the first failure, and the sums of the nodes' counters."""
        records = list(self.ended.values())
        first: dict[str, Any] = next(filter(failed, records), {"code": 0, "signal": None, "error": None})
        record = {**first, "stop_requested": self.stop_requested, "forced": self.forced}
        # The failures of the others may be a consequence of a lost node.
        if len(records) < self.count and not self.stop_requested and not (self.is_given_up and failed(record)):
            if not self.started and not records:
                return {"code": None, "signal": None, "error": f"srun started nothing (code {self.srun.returncode})"}
            silent = sorted(set(range(self.count)) - set(self.ended))
            lost = [self.hosts[number] for number in silent if number in self.hosts]
            reason = f"{', '.join(lost) or 'a node'} ended without a record"
            record |= {"code": None, "signal": None, "error": None}
            record |= {"ended_by": "node_fail", "ended_reason": reason, "lost_nodes": lost}
        for name in ("survivors", "killed_ranks"):
            record[name] = [value for node in records for value in node.get(name) or ()]
        counts = [each["oom_kills"] for each in records if each.get("oom_kills")]
        record["oom_kills"] = {name: total([each.get(name) for each in counts]) for name in (counts or [{}])[0]}
        record["cpu_seconds"] = total([each.get("cpu_seconds") for each in records])
        record["max_rss_bytes"] = max((each.get("max_rss_bytes") or 0 for each in records), default=0) or None
        return record

    def end(self, record: dict[str, Any]) -> int:
        write_record(
            self.folder / "exit.json",
            {"started_at": self.began, "ended_at": time.time(), "stop_requested": self.stop_requested, **record},
        )
        return 0


def failed(record: dict[str, Any]) -> bool:
    return any(record.get(name) for name in ("code", "signal", "error", "lease_conflict", "ended_by"))


def end_with_parent() -> Callable[[], None]:
    """A preexec function by which a child gets SIGUSR2 when this process is killed. Otherwise slurmd would let it live,
    and the lead would get no record of it."""
    parent, system = os.getpid(), ctypes.CDLL(None)

    def begin() -> None:
        system.prctl(PR_SET_PDEATHSIG, int(signal.SIGUSR2))
        if os.getppid() != parent:
            os._exit(1)

    return begin


def total(values: list[float | None]) -> float | None:
    """The sum of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


class NodeTask:
    """Runs this node's part of the attempt."""

    def __init__(self, folder: Path, port: str) -> None:
        self.number = int(os.environ["SLURM_PROCID"])
        self.plan: dict[str, Any] = json.loads((folder / "attempt.json").read_text("utf-8"))
        self.values = {
            NODE_RANK: str(self.number),
            FIRST_NODE: os.environ["SLURM_LAUNCH_NODE_IPADDR"],
            FIRST_PORT: port,
        }
        self.folder = folder / f"node-{self.number}"
        self.logs = folder.parent / "nodes" / str(self.number)

    def run(self) -> int:
        # Files of an earlier start of the job.
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in (self.folder, self.logs):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        plan = {**self.plan, **{name: self.fill(self.plan[name]) for name in ("argv", "env")}}
        name = Path(self.plan["output"]).name
        write_record(self.folder / "attempt.json", {**plan, "output": f"../../nodes/{self.number}/{name}"})
        self.shim = subprocess.Popen(
            program(self.folder.parent, "shim", str(self.folder)),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            preexec_fn=end_with_parent(),
        )
        for number in PASSED_ON:
            signal.signal(number, lambda received, _: self.send(received))
        self.serve()
        record = read_record(self.folder / "exit.json")
        # The end of its command is unknown.
        lost = {"code": None, "ended_by": "node_fail", "ended_reason": "the shim ended without a record"}
        self.report(exit=record or lost)
        return 0

    def fill(self, given: Any) -> Any:
        """Replace the placeholders in a value of attempt.json."""
        if isinstance(given, dict):
            return {name: self.fill(value) for name, value in given.items()}
        if isinstance(given, list):
            return [self.fill(value) for value in given]
        for name, value in self.values.items():
            given = given.replace(name, value)
        return given

    def serve(self) -> None:
        """Forward signals and report the start, until the shim has ended."""
        is_reported, is_open, rest = False, True, b""
        while self.shim.poll() is None:
            if not is_reported and (started := read_record(self.folder / "started.json")) is not None:
                self.report(started=started, host=os.environ["SLURMD_NODENAME"])
                is_reported = True
            if not is_open:
                time.sleep(LOOK_SECONDS)
            elif select.select([0], [], [], LOOK_SECONDS)[0]:
                data = os.read(0, 4096)
                if not data:
                    # The lead is gone: no node continues alone.
                    is_open = False
                    self.send(signal.SIGUSR2)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self.send(int(line))

    def send(self, number: int) -> None:
        if self.shim.poll() is None:
            self.shim.send_signal(number)

    def report(self, **record: Any) -> None:
        print(json.dumps({"node": self.number, **record}), flush=True)  # noqa: T201 - srun sends it to the lead
