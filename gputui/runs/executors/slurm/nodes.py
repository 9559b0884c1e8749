"""Serves an attempt on several nodes of a job, in the shim's place. Standard library only, started as a file beside
shim.py by any Python of at least 3.9.

nodes.py lead FOLDER
    Runs in the batch step, on the first node, and keeps the attempt contract: starts one task on each node by srun,
    passes a stop on to all of them, ends the others where one fails, and writes exit.json for all.
nodes.py node FOLDER PORT
    One task: serves its node's part by the shim, in ``FOLDER/node-<k>``.

The two talk through srun's standard streams, which need no shared file to be seen in time: numbers of signals one way,
records in JSON the other. Read first: `Lead.run`, then `NodeTask.run`.
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

# In attempt.json: what each node puts in.
NODE_RANK = "{this node's rank}"
FIRST_NODE = "{the first node's address}"
FIRST_PORT = "{the first node's port}"

LOOK_SECONDS = 0.2
# Where one node has failed the others say why within this time; then they are ended.
PEER_SECONDS = 2.0
# srun waits for ever where a node does not answer.
START_SECONDS = 300.0
# The shims need their grace and this long to see that nobody is left.
END_SECONDS = 30.0
PR_SET_PDEATHSIG = 1
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write JSON so that it is there whole or not at all, readable by its owner only."""
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_record(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where there is none."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


class Lead:
    """All nodes of one start of the job."""

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
        for number in PASSED_ON:
            signal.signal(number, lambda one, _: self.signals.append(one))
        if not self.claim():
            return 0
        try:
            self.start()
        except OSError as error:
            return self.end({"code": None, "signal": None, "error": f"srun: {error.strerror or error}"})
        self.watch()
        return self.end(self.outcome())

    def claim(self) -> bool:
        self.lock = os.open(self.folder / "attempt.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return not (self.folder / "exit.json").exists()

    def start(self) -> None:
        # Kept bound, so that no other process is given the port, srun for its own streams first of all. The first rank
        # listens on it all the same, for both allow the address to be used again.
        self.meeting = socket.socket()
        self.meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.meeting.bind(("", 0))
        port = self.meeting.getsockname()[1]
        words = [f"--nodes={self.count}", f"--ntasks={self.count}", "--ntasks-per-node=1", "--distribution=block",
                 "--kill-on-bad-exit=0", "--wait=0", "--mpi=none"]  # fmt: skip
        if os.environ.get("SLURM_CPUS_PER_TASK"):
            # A step does not take it from the job.
            words.append(f"--cpus-per-task={os.environ['SLURM_CPUS_PER_TASK']}")
        program = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), "node", str(self.folder), str(port)]
        # In a session of its own: a signal for this process's group would reach every process of every task by it.
        self.srun = subprocess.Popen(
            ["srun", *words, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.start_by = time.monotonic() + START_SECONDS

    def watch(self) -> None:
        """Until srun has ended, which outlives all tasks."""
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
        """A record of a node."""
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
                # Where it is known already that a node failed, the others have nothing to say.
                patience = 0.0 if record["exit"].get("ended_by") else PEER_SECONDS
                self.peers_at = time.monotonic() + patience

    def pass_on(self) -> None:
        now = time.monotonic()
        while self.signals:
            number = self.signals.pop(0)
            self.stop_requested = True
            self.forced |= number == signal.SIGUSR2
            self.tell(signal.SIGUSR2 if number == signal.SIGUSR2 else signal.SIGTERM)
            if self.late_at is None:
                self.late_at = now + float(self.plan["grace_seconds"]) + END_SECONDS
        if self.peers_at is not None and now >= self.peers_at and len(self.ended) < self.count:
            self.peers_at = float("inf")
            self.tell(signal.SIGUSR2)
            self.late_at = min(self.late_at or float("inf"), now + END_SECONDS)
        is_stuck = len(self.started) < self.count and now > self.start_by
        if is_stuck or (self.late_at is not None and now > self.late_at):
            self.is_given_up = True
            self.srun.kill()

    def tell(self, number: int) -> None:
        """Have every node's shim get a signal."""
        assert self.srun.stdin is not None
        with contextlib.suppress(OSError):
            self.srun.stdin.write(f"{int(number)}\n".encode("ascii"))
            self.srun.stdin.flush()

    def outcome(self) -> dict[str, Any]:
        """exit.json of all nodes: the first that failed says how, and of what each counted there is the sum."""
        records = list(self.ended.values())
        first: dict[str, Any] = next(filter(failed, records), {"code": 0, "signal": None, "error": None})
        record = {**first, "stop_requested": self.stop_requested, "forced": self.forced}
        # What the others failed of may be that it is gone.
        if len(records) < self.count and not self.stop_requested and not (self.is_given_up and failed(record)):
            if not self.started and not records:
                return {"code": None, "signal": None, "error": f"srun started nothing (code {self.srun.returncode})"}
            silent = sorted(set(range(self.count)) - set(self.ended))
            lost = [self.hosts[number] for number in silent if number in self.hosts]
            reason = f"{', '.join(lost) or 'a node'} ended without a record"
            record |= {"code": None, "signal": None, "error": None}
            record |= {"ended_by": "node_fail", "ended_reason": reason, "lost_nodes": lost}
        for name in ("survivors", "killed_ranks"):
            record[name] = [one for each in records for one in each.get(name) or ()]
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
    """What a child does first, so that it gets SIGUSR2 when this process is killed: slurmd would let it live, and who
    leads would hear of neither."""
    parent, system = os.getpid(), ctypes.CDLL(None)

    def begin() -> None:
        system.prctl(PR_SET_PDEATHSIG, int(signal.SIGUSR2))
        if os.getppid() != parent:
            os._exit(1)

    return begin


def total(values: list[float | None]) -> float | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


class NodeTask:
    """This node's part of the attempt."""

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
        # What an earlier start of the job left.
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in (self.folder, self.logs):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        plan = {**self.plan, **{name: self.here(self.plan[name]) for name in ("argv", "env")}}
        name = Path(self.plan["output"]).name
        write_record(self.folder / "attempt.json", {**plan, "output": f"../../nodes/{self.number}/{name}"})
        self.shim = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("shim.py")), str(self.folder)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            preexec_fn=end_with_parent(),
        )
        for number in PASSED_ON:
            signal.signal(number, lambda one, _: self.send(one))
        self.serve()
        record = read_record(self.folder / "exit.json")
        # Nobody knows how its command ended.
        lost = {"code": None, "ended_by": "node_fail", "ended_reason": "the shim ended without a record"}
        self.say(exit=record or lost)
        return 0

    def here(self, given: Any) -> Any:
        if isinstance(given, dict):
            return {name: self.here(value) for name, value in given.items()}
        if isinstance(given, list):
            return [self.here(value) for value in given]
        for name, value in self.values.items():
            given = given.replace(name, value)
        return given

    def serve(self) -> None:
        """Until the shim has ended."""
        is_told, is_open, rest = False, True, b""
        while self.shim.poll() is None:
            if not is_told and (started := read_record(self.folder / "started.json")) is not None:
                self.say(started=started, host=os.environ["SLURMD_NODENAME"])
                is_told = True
            if not is_open:
                time.sleep(LOOK_SECONDS)
            elif select.select([0], [], [], LOOK_SECONDS)[0]:
                data = os.read(0, 4096)
                if not data:
                    # Who led is gone: no node goes on alone.
                    is_open = False
                    self.send(signal.SIGUSR2)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self.send(int(line))

    def send(self, number: int) -> None:
        if self.shim.poll() is None:
            self.shim.send_signal(number)

    def say(self, **record: Any) -> None:
        print(json.dumps({"node": self.number, **record}), flush=True)  # noqa: T201 - srun brings it to the lead


def main() -> int:
    os.umask(0o077)
    if sys.argv[1] == "lead":
        return Lead(Path(sys.argv[2])).run()
    return NodeTask(Path(sys.argv[2]), sys.argv[3]).run()


if __name__ == "__main__":
    sys.exit(main())
