"""An attempt on several nodes of a job, as part of remote.pyz. Standard library only, for any Python
from 3.9 on.

The job's body, on the first node, has a `Lead` in place of a shim: it starts one task on each node
by srun, forwards a stop to all, ends the others if one fails, and writes exit.json for all. Each
task is a `NodeShim`, whose folder is ``FOLDER/node-<k>``. They communicate through srun's standard
streams, because shared files may be seen late: signal numbers to the tasks, JSON records to the
lead. Read first: `Lead.wait`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gputui.runs.shim import WATCHED, Shim, read_record, write_record

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


class Lead:
    """Runs an attempt on all nodes, for one start of the job. The body uses it as the process of a
    shim. ``program`` is the command that each node runs."""

    def __init__(self, folder: Path, program: Sequence[str]) -> None:
        self.folder = folder
        self.program = program
        self.plan: dict[str, Any] = json.loads((folder / "attempt.json").read_text("utf-8"))
        self.count = int(self.plan["nodes"])
        self.began = time.time()
        self.started: dict[int, dict[str, Any]] = {}
        self.ended: dict[int, dict[str, Any]] = {}
        self.hosts: dict[int, str] = {}
        self.signals: list[int] = []
        self.stop_requested = self.forced = self.is_given_up = self.is_over = False
        self.end_peers_at = float("inf")
        self.give_up_at = time.monotonic() + START_SECONDS

    def poll(self) -> int | None:
        if self.is_over:
            return 0
        return None

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def wait(self) -> None:
        """Run the attempt to its end."""
        try:
            with self.start() as self.srun:
                self.watch()
            record = self.outcome()
        except OSError as error:
            record = {"code": None, "signal": None, "error": f"srun: {error.strerror or error}"}
        self.is_over = True
        times = {"started_at": self.began, "ended_at": time.time()}
        write_record(self.folder / "exit.json", {**times, "stop_requested": self.stop_requested, **record})

    def start(self) -> subprocess.Popen[bytes]:
        # It stays bound, so that no other process gets the port, such as srun for its streams. The
        # first rank can still listen on it, because both set SO_REUSEADDR.
        self.meeting = socket.socket()
        self.meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.meeting.bind(("", 0))
        port = self.meeting.getsockname()[1]
        options = [f"--nodes={self.count}", f"--ntasks={self.count}", "--ntasks-per-node=1", "--distribution=block"]
        # Tasks end with code 0 unless they are killed.
        options += ["--kill-on-bad-exit=1", "--wait=0", "--mpi=none"]
        if os.environ.get("SLURM_CPUS_PER_TASK"):
            # A step does not inherit it from the job.
            options.append(f"--cpus-per-task={os.environ['SLURM_CPUS_PER_TASK']}")
        # A new session: srun would forward a signal of this process's group to every process of
        # every task.
        return subprocess.Popen(
            ["srun", *options, *self.program, "node", str(self.folder), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )

    def watch(self) -> None:
        """Handle records and signals until srun, which outlives all tasks, has ended."""
        assert self.srun.stdout is not None
        rest = b""
        is_open = True
        while is_open or self.srun.poll() is None:
            if is_open and select.select([self.srun.stdout], [], [], LOOK_SECONDS)[0]:
                data = os.read(self.srun.stdout.fileno(), 1 << 16)
                is_open = bool(data)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self.note(line)
            elif not is_open:
                time.sleep(LOOK_SECONDS)
            self.pass_on(time.monotonic())

    def note(self, line: bytes) -> None:
        """Handle a line of a node: a record, or other output, which is for job.log."""
        try:
            record = json.loads(line)
            number = int(record["node"])
        except (ValueError, KeyError, TypeError):
            print(line.decode("utf-8", "replace"), flush=True)  # noqa: T201
            return
        if record.get("started"):
            self.started[number] = record["started"]
            self.hosts[number] = str(record["host"])
            if len(self.started) == self.count:
                self.give_up_at = float("inf")
                first = {**self.started.get(0, {}), "shim_pid": os.getpid()}
                write_record(self.folder / "started.json", first)
        if record.get("exit"):
            self.ended[number] = record["exit"]
            if has_failed(record["exit"]):
                self.end_peers_at = min(self.end_peers_at, time.monotonic() + PEER_SECONDS)

    def pass_on(self, now: float) -> None:
        """Forward signals, and end nodes that are due."""
        while self.signals:
            is_forced = self.signals.pop(0) == signal.SIGUSR2
            self.stop_requested = True
            self.forced = self.forced or is_forced
            number = signal.SIGUSR2 if is_forced else signal.SIGTERM
            self.tell(number)
            self.give_up_at = min(self.give_up_at, now + float(self.plan["grace_seconds"]) + END_SECONDS)
        if now >= self.end_peers_at and len(self.ended) < self.count:
            self.end_peers_at = float("inf")
            self.tell(signal.SIGUSR2)
            self.give_up_at = min(self.give_up_at, now + END_SECONDS)
        if now > self.give_up_at:
            self.is_given_up = True
            self.srun.kill()

    def tell(self, number: int) -> None:
        """Send a signal to every node's shim."""
        assert self.srun.stdin is not None
        with contextlib.suppress(OSError):
            self.srun.stdin.write(f"{int(number)}\n".encode("ascii"))

    def outcome(self) -> dict[str, Any]:
        """The record for exit.json: the first failure, and the sums of the nodes' counters."""
        records = list(self.ended.values())
        first: dict[str, Any] = next(filter(has_failed, records), {"code": 0, "signal": None, "error": None})
        record = {**first, "stop_requested": self.stop_requested, "forced": self.forced}
        # The failures of the others may be a consequence of a lost node.
        if len(records) < self.count and not self.stop_requested and not (self.is_given_up and has_failed(record)):
            if not self.started and not records:
                return {"code": None, "signal": None, "error": f"srun started nothing (code {self.srun.returncode})"}
            lost = [self.hosts[number] for number in sorted(set(self.hosts) - set(self.ended))]
            reason = f"{', '.join(lost) or 'a node'} ended without a record"
            record |= {"code": None, "signal": None, "error": None, "ended_by": "node_fail", "ended_reason": reason}
        for name in ("survivors", "killed_ranks"):
            record[name] = [value for node in records for value in node.get(name) or ()]
        counts = [node["oom_kills"] for node in records if node.get("oom_kills")]
        record["oom_kills"] = {name: total([count.get(name) for count in counts]) for name in (counts or [{}])[0]}
        record["cpu_seconds"] = total([node.get("cpu_seconds") for node in records])
        record["max_rss_bytes"] = max((node.get("max_rss_bytes") or 0 for node in records), default=0) or None
        return record


def has_failed(record: dict[str, Any]) -> bool:
    return any(record.get(name) for name in ("code", "signal", "error", "lease_conflict", "ended_by"))


def total(values: list[float | None]) -> float | None:
    """The sum of the values that are known; None if none is."""
    numbers = [value for value in values if value is not None]
    if numbers:
        return sum(numbers)
    return None


class NodeShim(Shim):
    """The shim of one node's part of an attempt, which tells the lead of its start and end."""

    def __init__(self, folder: Path, port: str) -> None:
        self.number = int(os.environ["SLURM_PROCID"])
        node_folder = folder / f"node-{self.number}"
        logs = folder.parent / "nodes" / str(self.number)
        # Files of an earlier start of the job.
        shutil.rmtree(node_folder, ignore_errors=True)
        for path in (node_folder, logs):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        plan: dict[str, Any] = json.loads((folder / "attempt.json").read_text("utf-8"))
        values = {NODE_RANK: str(self.number), FIRST_NODE: os.environ["SLURM_LAUNCH_NODE_IPADDR"], FIRST_PORT: port}
        plan["argv"] = [fill_placeholders(word, values) for word in plan["argv"]]
        plan["env"] = {name: fill_placeholders(word, values) for name, word in plan["env"].items()}
        plan["output"] = f"../../nodes/{self.number}/{Path(plan['output']).name}"
        write_record(node_folder / "attempt.json", plan)
        super().__init__(node_folder)

    def run(self) -> int:
        # Blocked before the thread begins, so that the shim's own loop gets the signals that the
        # thread sends.
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        threading.Thread(target=handle_lead_signals, daemon=True).start()
        super().run()
        self.report(exit=read_record(self.directory / "exit.json"))
        return 0

    def note_start(self) -> None:
        start = self.unwritten_start
        super().note_start()
        if start is not None and self.unwritten_start is None:
            self.report(started=start, host=os.environ["SLURMD_NODENAME"])

    def report(self, **record: Any) -> None:
        print(json.dumps({"node": self.number, **record}), flush=True)  # noqa: T201 - srun sends it to the lead


def fill_placeholders(word: str, values: dict[str, str]) -> str:
    """Replace each placeholder of ``values`` in a word of a command."""
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def handle_lead_signals() -> None:
    """Send this process the signals that the lead names. Without the lead, no node continues alone."""
    rest = b""
    while data := os.read(0, 4096):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            os.kill(os.getpid(), int(line))
    os.kill(os.getpid(), signal.SIGUSR2)
