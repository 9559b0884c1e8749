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

from gputui.runs.shim import Shim
from gputui.runs.shim_records import read_record, write_record
from gputui.runs.shim_signals import WATCHED

# Placeholders in attempt.json, which each node replaces.
NODE_RANK = "{this node's rank}"
FIRST_NODE = "{the first node's address}"
FIRST_PORT = "{the first node's port}"

LOOK_SECONDS = 0.2  # how much later a signal is passed on
# The time that the other nodes get to report their own failure, before they are ended.
PEER_SECONDS = 2.0
# srun waits forever if a node does not answer.
START_SECONDS = 300.0
# The time that the shims need beside their grace period.
END_SECONDS = 30.0


class Lead:
    """Runs an attempt on all nodes, for one start of the job. The body uses it as the process of a
    shim.

    Attributes:
        program: the command that each node runs.
        plan: attempt.json.
        began: UTC unix seconds.
        signals: those that were sent to this "process" and not passed on yet.
        stop_requested: a signal has asked for the end.
        forced: a signal has asked for it at once.
        end_peers_at: when the other nodes are ended after one has failed (monotonic).
        give_up_at: when srun is killed because nodes do not answer (monotonic).
        is_given_up: srun was killed for that.
        is_over: srun has ended, so that only exit.json is still to be written.
    """

    def __init__(self, folder: Path, program: Sequence[str]) -> None:
        self.folder = folder
        self.program = program
        self.plan: dict[str, Any] = json.loads((folder / "attempt.json").read_text("utf-8"))
        self.began = time.time()
        self.nodes = NodeRecords(int(self.plan["nodes"]))
        self.signals: list[int] = []
        self.stop_requested = False
        self.forced = False
        self.end_peers_at = float("inf")
        self.give_up_at = time.monotonic() + START_SECONDS
        self.is_given_up = False
        self.is_over = False

    def poll(self) -> int | None:
        if self.is_over:
            return 0
        return None

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def wait(self) -> None:
        """Run the attempt to its end."""
        try:
            # It stays bound, so that no other process gets the port, such as srun for its streams. The
            # first rank can still listen on it, because both set SO_REUSEADDR.
            with socket.socket() as meeting:
                meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                meeting.bind(("", 0))
                with self.start(meeting.getsockname()[1]) as srun:
                    self.watch(srun)
                record = self.outcome(srun.returncode)
        except OSError as error:
            record = {"code": None, "signal": None, "error": f"srun: {error.strerror or error}"}
        self.is_over = True
        times = {"started_at": self.began, "ended_at": time.time()}
        write_record(self.folder / "exit.json", {**times, "stop_requested": self.stop_requested, **record})

    def start(self, port: int) -> subprocess.Popen[bytes]:
        """Start srun. Raises OSError."""
        count = self.nodes.count
        options = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--distribution=block"]
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

    def watch(self, srun: subprocess.Popen[bytes]) -> None:
        """Handle records and signals until srun, which outlives all tasks, has ended."""
        assert srun.stdout is not None
        rest = b""
        is_open = True
        while is_open or srun.poll() is None:
            if is_open and select.select([srun.stdout], [], [], LOOK_SECONDS)[0]:
                data = os.read(srun.stdout.fileno(), 1 << 16)
                is_open = bool(data)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self.note(line)
            elif not is_open:
                time.sleep(LOOK_SECONDS)
            self.pass_on(srun, time.monotonic())

    def note(self, line: bytes) -> None:
        """Handle a line of a node: a record, or other output, which is for job.log."""
        try:
            record = json.loads(line)
            number = int(record["node"])
        except (ValueError, KeyError, TypeError):
            print(line.decode("utf-8", "replace"), flush=True)  # noqa: T201
            return
        if record.get("started"):
            self.nodes.started[number] = record["started"]
            self.nodes.hosts[number] = str(record["host"])
            if len(self.nodes.started) == self.nodes.count:
                self.give_up_at = float("inf")
                first = {**self.nodes.started.get(0, {}), "shim_pid": os.getpid()}
                write_record(self.folder / "started.json", first)
        if record.get("exit"):
            self.nodes.ended[number] = record["exit"]
            if has_failed(record["exit"]):
                self.end_peers_at = min(self.end_peers_at, time.monotonic() + PEER_SECONDS)

    def pass_on(self, srun: subprocess.Popen[bytes], now: float) -> None:
        """Forward signals, and end nodes that are due."""
        while self.signals:
            self.stop_requested = True
            number = signal.SIGTERM
            if self.signals.pop(0) == signal.SIGUSR2:
                self.forced = True
                number = signal.SIGUSR2
            tell(srun, number)
            self.give_up_at = min(self.give_up_at, now + float(self.plan["grace_seconds"]) + END_SECONDS)
        if now >= self.end_peers_at and self.nodes.are_missing:
            self.end_peers_at = float("inf")
            tell(srun, signal.SIGUSR2)
            self.give_up_at = min(self.give_up_at, now + END_SECONDS)
        if now > self.give_up_at:
            self.is_given_up = True
            srun.kill()

    def outcome(self, srun_code: int) -> dict[str, Any]:
        """The record for exit.json: the first failure, and the sums of the nodes' counters."""
        records = list(self.nodes.ended.values())
        first: dict[str, Any] = next(filter(has_failed, records), {"code": 0, "signal": None, "error": None})
        record = {**first, "stop_requested": self.stop_requested, "forced": self.forced}
        # The failures of the others may be a consequence of a lost node.
        explains_end = self.is_given_up and has_failed(record)
        if self.nodes.are_missing and not self.stop_requested and not explains_end:
            if not self.nodes.started and not records:
                return {"code": None, "signal": None, "error": f"srun started nothing (code {srun_code})"}
            reason = f"{', '.join(self.nodes.lost_hosts) or 'a node'} ended without a record"
            record |= {"code": None, "signal": None, "error": None, "ended_by": "node_fail", "ended_reason": reason}
        return record | self.nodes.sums()


class NodeRecords:
    """What the nodes of an attempt have told of their parts, by the node's number.

    Attributes:
        count: how many nodes there are.
        hosts: the names of those that have started.
        started: their records of the start.
        ended: their records of the end, the first to end first.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.hosts: dict[int, str] = {}
        self.started: dict[int, dict[str, Any]] = {}
        self.ended: dict[int, dict[str, Any]] = {}

    @property
    def are_missing(self) -> bool:
        """Not all nodes have told of their end."""
        return len(self.ended) < self.count

    @property
    def lost_hosts(self) -> list[str]:
        """The names of the nodes that have started and not told of their end."""
        return [self.hosts[number] for number in sorted(set(self.hosts) - set(self.ended))]

    def sums(self) -> dict[str, Any]:
        """The fields of exit.json that add up those of the nodes."""
        records = list(self.ended.values())
        sums: dict[str, Any] = {}
        for name in ("survivors", "killed_ranks"):
            sums[name] = [value for node in records for value in node.get(name) or ()]
        counts = [node["oom_kills"] for node in records if node.get("oom_kills")]
        sums["oom_kills"] = {}
        if counts:
            sums["oom_kills"] = {name: total([count.get(name) for count in counts]) for name in counts[0]}
        sums["cpu_seconds"] = total([node.get("cpu_seconds") for node in records])
        sums["max_rss_bytes"] = max((node.get("max_rss_bytes") or 0 for node in records), default=0) or None
        return sums


def tell(srun: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to every node's shim."""
    assert srun.stdin is not None
    with contextlib.suppress(OSError):
        srun.stdin.write(f"{int(number)}\n".encode("ascii"))


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
