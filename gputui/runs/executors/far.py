"""What runs on the far side of a courier: standard library only, started as a file by any Python of at least 3.9.

far.py body FOLDER CLAIM [REQUEUE-COMMAND ...]
    Serve the attempt in FOLDER by the shim beside this file. CLAIM is the scheduler's name of the job: another job that
    comes for the same attempt ends at once. After an earlier start of the same job it goes on from the newest
    checkpoint that is whole. SIGUSR1 is the scheduler's warning that the time is nearly over: the command is asked to
    save and end, then the requeue command is run. SIGTERM asks it to end, SIGUSR2 ends it at once.
far.py report FOLDER
    Print how the attempt in FOLDER is and how its files grew, as JSON; the request is JSON on standard input.
far.py signal FOLDER NUMBER
    Signal the process that serves the attempt in FOLDER.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

REQUEUE_SECONDS = 60.0
CHUNK_BYTES = 1 << 20
# Of all files of one report together.
MOST_BYTES = 8 << 20
NEWEST_CHECKPOINT = "{newest checkpoint}"


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


# --- a checkpoint to go on from ---------------------------------------------------------------------------------------


def is_whole(path: Path) -> bool:
    """Whether a file is all that was written: by the checksum beside it, else by the archive's own; one of another kind
    by having anything in it."""
    try:
        beside = path.with_name(path.name + ".sha256")
        if beside.is_file():
            digest = hashlib.sha256()
            with path.open("rb") as file:
                for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
                    digest.update(chunk)
            return beside.read_text("utf-8").split()[0] == digest.hexdigest()
        with path.open("rb") as file:
            head = file.read(2)
        if head == b"PK" or path.suffix in (".pt", ".pth", ".ckpt"):
            with zipfile.ZipFile(path) as archive:
                return archive.testzip() is None
        return bool(head)
    except (OSError, ValueError, IndexError, zipfile.BadZipFile):
        return False


def newest_checkpoint(folder: Path, pattern: str, since: float) -> str | None:
    """The newest checkpoint written after ``since`` (UTC seconds) that is whole, a file or a folder of files."""
    found = []
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if path.suffix not in (".tmp", ".sha256") and path.stat().st_mtime >= since:
                found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True):
        files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
        if files and all(is_whole(each) for each in files if each.suffix != ".sha256"):
            return str(path)
    return None


def resumed(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan that goes on from the newest checkpoint there; unchanged where there is none."""
    again = plan.get("resume")
    if not again:
        return plan
    found = newest_checkpoint(Path(again["folder"]), again["pattern"], float(plan["created_at"]))
    if found is None:
        return plan
    argv = [word.replace(NEWEST_CHECKPOINT, found) for word in again["argv"]]
    env = {name: value.replace(NEWEST_CHECKPOINT, found) for name, value in again["env"].items()}
    return {**plan, "argv": argv, "env": env, "resume_from": found}


# --- what a courier without the same files asks -----------------------------------------------------------------------


def served_by(folder: Path) -> int | None:
    """The living process that serves an attempt: its body, else the shim. It is known by the folder in its command
    line."""
    for find in (
        lambda: (folder / "pid").read_text("ascii"),
        lambda: (read_record(folder / "started.json") or {})["shim_pid"],
    ):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            pid = int(find())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if any(word.startswith(os.fsencode(folder)) for word in words):
                return pid
    return None


def report(folder: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """``grown``: of every file that only grows what lies behind the byte that is ``known`` of it, as base64; ``whole``:
    the small records of the attempt. ``metrics`` are globs of files that grow, too."""
    run_dir = folder.parents[2]
    paths = [path for path in (folder.parent / "nodes").rglob("*.log") if path.is_file()]
    paths += [path for glob in wanted["metrics"] for path in run_dir.glob(glob) if path.is_file()]
    paths += [folder / "job.log", folder / "starts.jsonl"]
    grown, left = {}, MOST_BYTES
    for path in paths:
        name = str(path.relative_to(run_dir))
        known = int(wanted["known"].get(name, 0))
        with contextlib.suppress(OSError), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(known if known <= size else 0)
            data = file.read(min(CHUNK_BYTES, left))
            left -= len(data)
            if data or known > size:
                text = base64.b64encode(data).decode("ascii")
                grown[name] = {"at": known if known <= size else 0, "data": text, "size": size}
    whole = {}
    for name in ("started.json", "exit.json", "claim"):
        with contextlib.suppress(OSError):
            whole[name] = (folder / name).read_text("utf-8")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return {
        "grown": grown, "whole": whole, "is_alive": served_by(folder) is not None, "boot_id": boot, "now": time.time(),
        "host": os.uname().nodename, "is_more": left <= 0,
    }  # fmt: skip


# --- the body of a job ------------------------------------------------------------------------------------------------


class Body:
    """One start of the job."""

    def __init__(self, folder: Path, claim: str, requeue: list[str]) -> None:
        self.folder, self.claim, self.requeue = folder, claim, requeue
        self.is_warned = False
        self.shim: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        signal.signal(signal.SIGUSR1, self.warned)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(number, self.passed_on)
        if not self.is_ours():
            print(f"another job serves this attempt; {self.claim} ends", flush=True)  # noqa: T201
            return 0
        before = read_record(self.folder / "exit.json")
        if before is not None and not before.get("stop_requested"):
            return code_of(before)
        if before is not None or (self.folder / "started.json").exists():
            self.begin_again(before)
        else:
            plan = read_record(self.folder / "attempt.json") or {}
            if plan.get("goes_on") and plan.get("resume_from") is None:
                # Nobody else can see which checkpoints there are.
                write_record(self.folder / "attempt.json", resumed({**plan, "created_at": 0.0}))
        self.shim = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("shim.py")), str(self.folder)],
            stdin=subprocess.DEVNULL,
        )
        self.shim.wait()
        ended = read_record(self.folder / "exit.json")
        if ended is None:
            return 1
        if self.is_warned and ended.get("stop_requested") and not self.is_requeued():
            write_record(self.folder / "exit.json", {**ended, "ended_by": "time_limit"})
            return 1
        return code_of(ended)

    def is_ours(self) -> bool:
        """Whether this job is the first that came for the attempt, now or before it was requeued."""
        path = self.folder / "claim"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            # Who made it may be about to write it.
            for _ in range(50):
                holder = path.read_text("utf-8")
                if holder:
                    return holder == self.claim
                time.sleep(0.1)
            return False
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(self.claim)
        return True

    def begin_again(self, before: dict[str, Any] | None) -> None:
        """Set aside what the start before left, and go on from its newest checkpoint."""
        with (self.folder / "starts.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"again_at": time.time(), "exit": before}) + "\n")
        plan = read_record(self.folder / "attempt.json")
        if plan is not None:
            write_record(self.folder / "attempt.json", resumed(plan))
        for name in ("exit.json", "started.json", "exit.json.tmp"):
            with contextlib.suppress(OSError):
                (self.folder / name).unlink()

    def is_requeued(self) -> bool:
        """Whether the scheduler took the job back; it ends this process then."""
        if not self.requeue:
            return False
        try:
            done = subprocess.run(self.requeue, stdin=subprocess.DEVNULL, timeout=REQUEUE_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"not requeued: {error}", flush=True)  # noqa: T201
            return False
        if done.returncode == 0:
            time.sleep(REQUEUE_SECONDS)
        return done.returncode == 0

    def warned(self, *_: object) -> None:
        self.is_warned = True
        self.passed_on(signal.SIGTERM)

    def passed_on(self, number: int, *_: object) -> None:
        if self.shim is not None and self.shim.poll() is None:
            self.shim.send_signal(number)
        elif self.shim is None and number != signal.SIGUSR1:
            sys.exit(128 + number)


def code_of(ended: dict[str, Any]) -> int:
    """An exit code that says how the command ended."""
    code = ended.get("code")
    return int(code) if isinstance(code, int) else 1


def main() -> int:
    os.umask(0o077)
    if sys.argv[1] == "body":
        return Body(Path(sys.argv[2]), sys.argv[3], sys.argv[4:]).run()
    folder = Path(sys.argv[2])
    if sys.argv[1] == "report":
        print(json.dumps(report(folder, json.load(sys.stdin))))  # noqa: T201
        return 0
    if sys.argv[1] == "signal":
        pid = served_by(folder)
        if pid is not None:
            os.kill(pid, int(sys.argv[3]))
        return 0
    raise SystemExit(f"far.py: {sys.argv[1]}?")


if __name__ == "__main__":
    sys.exit(main())
