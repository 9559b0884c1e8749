"""The runner's counterpart on the target: standard library only, for any Python from 3.9 on. It is
sent as one zipapp, ``remote.pyz``, with the shim and what serves several nodes.

remote.pyz body FOLDER CLAIM [REQUEUE-COMMAND ...]
    Serve the attempt in FOLDER by the shim. CLAIM is the scheduler's name of the job: another job
    that comes for the same attempt ends at once. A later start of the same job continues from its
    own newest whole checkpoint; an attempt that follows others, whose checkpoints are seen only
    there, from the newest one of its lineage. SIGUSR1 is the scheduler's warning that the time is
    nearly over: the command is asked to save and end, then the requeue command is run. SIGTERM asks
    it to end, SIGUSR2 ends it at once.
remote.pyz stream FOLDER CLAIM
    Copy the files beside the zipapp into FOLDER (…/attempts/<n>/remote, from the home directory unless
    absolute), serve the attempt there, and print what its files grow by, each report in one line
    with its checksum.
remote.pyz report FOLDER
    Print how the attempt in FOLDER is and how its files grew, as JSON; the request is JSON on
    standard input.
remote.pyz signal FOLDER NUMBER
    Signal the process that serves the attempt in FOLDER.
remote.pyz shim FOLDER, node FOLDER PORT
    What serves the attempt: the shim, or that of one of several nodes (slurm/nodes.py).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputui.runs.executors.remote_checkpoints import resume_plan
from gputui.runs.shim_records import read_record, write_record

if TYPE_CHECKING:
    from gputui.runs.executors.slurm.nodes import Lead

REQUEUE_SECONDS = 60.0  # a busy controller; a requeued job is killed within it
CHUNK_BYTES = 1 << 20  # an answer of a second on a slow line
# Larger than any record of an attempt.
RECORD_BYTES = 1 << 14
# The limit of all data in one report.
MOST_BYTES = 8 << 20
# The limit of one file's data in one line of a stream.
STREAM_BYTES = 1 << 16
STREAM_SECONDS = 1.0  # how much later its lines are here
# Placeholders in a sent attempt.json for the run's folder and the code, which are known only on the
# target.
RUN_HERE = "{the run's folder there}"
CODE_HERE = "{the code's folder there}"
FRAME = "gputui:"
# The zipapp's name in an attempt's folder.
PROGRAM = "remote.pyz"
# File in an attempt's folder: the attempt is over, and no job may run it any more.
OVER = "over"
# File in an attempt's folder: the checkpoint that was chosen there, as ``path``, null for none.
RESUMED = "resumed.json"
# File in an attempt's folder: the job was requeued at its time limit.
TIME_LIMIT = "time_limit"


def unwritable(folder: Path) -> str | None:
    """The reason why no record can be written to a folder, such as a full disk or quota; None if
    one can."""
    try:
        write_record(folder / "room", {"bytes": "." * RECORD_BYTES})
    except OSError as error:
        return f"{error.strerror}: {folder}"
    finally:
        for name in ("room", "room.tmp"):
            with contextlib.suppress(OSError):
                (folder / name).unlink()
    return None


def served_by(folder: Path) -> int | None:
    """The living process that runs an attempt: its body, else the shim, checked by the folder in
    its command line."""
    pids: list[Any] = [path.read_text("ascii") for path in folder.glob("pid")]
    pids.append((read_record(folder / "started.json") or {}).get("shim_pid"))
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, TypeError):
            argv = Path(f"/proc/{int(pid)}/cmdline").read_bytes().split(b"\0")
            if any(word.startswith(os.fsencode(folder)) for word in argv):
                return int(pid)
    return None


def report(folder: Path, request: dict[str, Any], most_bytes: int = CHUNK_BYTES) -> dict[str, Any]:
    """Read the state of an attempt, and what its files grew by.

    A file shorter than its known bytes was truncated, which adds one to its cuts, and is sent from its beginning.

    Args:
        request: ``known`` has the bytes that are known of each growing file, ``cuts`` how often each was truncated,
            ``metrics`` globs of further growing files.
        most_bytes: of one file.

    Returns:
        ``grown`` has the new data of each growing file, as base64, ``whole`` the small records of the attempt;
        ``is_partial``: not all of the metrics was sent.
    """
    run_dir = folder.parents[2]
    metrics = [path for glob in request["metrics"] for path in run_dir.glob(glob) if path.is_file()]
    logs = [path for path in (folder.parent / "nodes").rglob("*.log") if path.is_file()]
    grown: dict[str, dict[str, Any]] = {}
    remaining_bytes = MOST_BYTES
    is_partial = False
    for path in [*metrics, *logs, folder / "job.log", folder / "starts.jsonl"]:
        name = str(path.relative_to(run_dir))
        known_bytes = int(request["known"].get(name, 0))
        with contextlib.suppress(OSError), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            was_cut = known_bytes > size
            begin = 0 if was_cut else known_bytes
            at = file.seek(begin)
            data = file.read(min(most_bytes, remaining_bytes))
            remaining_bytes -= len(data)
            is_rest_left = at + len(data) < size
            is_partial = is_partial or (is_rest_left and path in metrics)
            if data or was_cut:
                cut = int(request["cuts"].get(name, 0)) + was_cut
                grown[name] = {"at": at, "data": base64.b64encode(data).decode("ascii"), "cut": cut}
    whole = {}
    for name in ("started.json", "exit.json", "claim", RESUMED):
        with contextlib.suppress(OSError):
            whole[name] = (folder / name).read_text("utf-8")
    is_alive = served_by(folder) is not None
    return {
        "grown": grown,
        "is_partial": is_partial,
        "whole": whole,
        "is_alive": is_alive,
        "unwritable": None if is_alive else unwritable(folder),
        "host": os.uname().nodename,
    }


def frame(record: dict[str, Any]) -> str:
    """A record as one line of printable ASCII with a checksum."""
    text = json.dumps(record, separators=(",", ":"))
    return f"{FRAME}{zlib.crc32(text.encode('ascii')):08x} {text}"


def framed(line: str) -> dict[str, Any] | None:
    """The record in a line; None if it has none or is damaged."""
    if not line.startswith(FRAME):
        return None
    check, _, text = line[len(FRAME) :].partition(" ")
    if check != f"{zlib.crc32(text.encode('utf-8', 'replace')):08x}":
        return None
    value = json.loads(text)
    if isinstance(value, dict):
        return value
    return None


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """JSON data with each of its texts changed, but for the names of fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [with_texts(item, change) for item in value]
    if isinstance(value, dict):
        return {name: with_texts(item, change) for name, item in value.items()}
    return value


def copy_sent(sent: Path, folder: Path) -> dict[str, Any]:
    """Copy the files that were ``sent`` to an attempt's folder, with this machine's paths in
    attempt.json. Returns its plan."""
    run_dir = folder.parents[2]
    for path in (folder, folder.parent / "nodes" / "0", run_dir / "checkpoints"):
        path.mkdir(parents=True, exist_ok=True)
    plan = with_texts(
        json.loads((sent / "attempt.json").read_text("utf-8")),
        lambda text: text.replace(RUN_HERE, str(run_dir)).replace(CODE_HERE, str(sent.parent)),
    )
    write_record(folder / "attempt.json", plan)
    (folder / PROGRAM).write_bytes((sent / PROGRAM).read_bytes())
    return dict(plan)


def stream(folder: Path, claim: str) -> int:
    """Run the attempt, and print the data that its files grow by until it ends; return its exit code."""
    plan = copy_sent(Path(sys.argv[0]).resolve().parent, folder)
    # The end of a job signals all its processes; this one must still print what the others do about
    # it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    body = subprocess.Popen(program(folder, "body", str(folder), claim), stdin=subprocess.DEVNULL)
    sent = Sent()
    line_end = ""
    while True:
        has_ended = body.poll() is not None
        # Looked for before the report: exit.json is printed last, after all data of the files.
        is_over = (folder / "exit.json").exists()
        request = {"known": sent.known, "cuts": sent.cuts, "metrics": plan["mirrored"]}
        answer = report(folder, request, STREAM_BYTES)
        grown = answer["grown"]
        whole = {name: text for name, text in answer["whole"].items() if sent.whole.get(name) != text}
        if grown or not is_over:
            whole.pop("exit.json", None)
        if not grown and not whole:
            if has_ended:
                return int(body.returncode)
            time.sleep(STREAM_SECONDS)
            continue
        record = {"number": sent.lines, "host": answer["host"], "folder": str(folder), "grown": grown, "whole": whole}
        if print_all(f"{line_end}{frame(record)}\n"):
            line_end = ""
            sent.add(grown, whole)
        else:
            # Part of the line may be there: the next one begins by ending it.
            line_end = "\n"
            time.sleep(STREAM_SECONDS)


def print_all(text: str) -> bool:
    """Print ASCII text without a buffer; return whether there was room for all of it on the disk of the log."""
    data = text.encode("ascii")
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        return False
    return True


class Sent:
    """What a stream has sent.

    Attributes:
        known: so many bytes of each growing file.
        cuts: how often each was truncated.
        whole: the small records.
        lines: how many.
    """

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.cuts: dict[str, int] = {}
        self.whole: dict[str, str] = {}
        self.lines = 0

    def add(self, grown: dict[str, dict[str, Any]], whole: dict[str, str]) -> None:
        self.lines += 1
        self.whole.update(whole)
        for name, part in grown.items():
            self.cuts[name] = part["cut"]
            self.known[name] = part["at"] + len(base64.b64decode(part["data"]))


def program(folder: Path, *arguments: str) -> list[str]:
    """A command of the zipapp in an attempt's folder."""
    return [sys.executable, "-I", "-S", str(folder / PROGRAM), *arguments]


class Body:
    """One start of a job, which runs the attempt."""

    def __init__(self, folder: Path, claim: str, requeue: list[str]) -> None:
        self.folder = folder
        self.claim = claim
        self.requeue = requeue
        self.is_warned = False
        self.shim: subprocess.Popen[bytes] | Lead | None = None

    def run(self) -> int:
        signal.signal(signal.SIGUSR1, self.note_warning)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(number, self.pass_on)
        if not self.claim_attempt():
            print(f"another job serves this attempt; {self.claim} ends", flush=True)  # noqa: T201
            return 0
        if (self.folder / OVER).exists():
            print(f"the attempt is over; {self.claim} ends", flush=True)  # noqa: T201
            return 0
        before = read_record(self.folder / "exit.json")
        if before is not None and not before.get("stop_requested"):
            return code_of(before)
        # A start that ended early may have left only its line in starts.jsonl.
        if before is not None or any((self.folder / name).exists() for name in ("started.json", "starts.jsonl")):
            self.begin_again(before)
        else:
            plan = read_record(self.folder / "attempt.json") or {}
            if plan.get("lineage"):
                # Only this machine sees the checkpoints.
                plan = resume_plan(plan, self.folder, plan["lineage"])
                write_record(self.folder / "attempt.json", plan)
                write_record(self.folder / RESUMED, {"path": plan["resume_from"]})
        if self.is_warned:
            # Its limit is near, and nothing has begun.
            if self.requeue_job():
                return 0
            return 1
        return self.serve()

    def serve(self) -> int:
        """Run the attempt to its end, by the shim or on all nodes."""
        if (read_record(self.folder / "attempt.json") or {}).get("nodes"):
            from gputui.runs.executors.slurm.nodes import Lead

            self.shim = Lead(self.folder, program(self.folder))
        else:
            self.shim = subprocess.Popen(program(self.folder, "shim", str(self.folder)), stdin=subprocess.DEVNULL)
        self.shim.wait()
        ended = read_record(self.folder / "exit.json")
        if ended is None:
            return 1
        if self.is_warned and ended.get("stop_requested") and not self.requeue_job():
            write_record(self.folder / "exit.json", {**ended, "ended_by": "time_limit"})
            return 1
        return code_of(ended)

    def claim_attempt(self) -> bool:
        """Claim the attempt; return whether this job, possibly requeued, is the first that began it."""
        path = self.folder / "claim"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            # The job that created the file may not have written it yet.
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
        """Record and remove the previous start's records, and resume from its newest checkpoint."""
        with (self.folder / "starts.jsonl").open("a", encoding="utf-8") as file:
            mark = self.folder / TIME_LIMIT
            why = {"why": TIME_LIMIT} if mark.exists() else {}
            mark.unlink(missing_ok=True)
            file.write(json.dumps({"again_at": time.time(), "exit": before, **why}) + "\n")
        plan = read_record(self.folder / "attempt.json")
        if plan is not None:
            attempts = [{"attempt": plan["attempt"], "until": None, "failed": False}]
            write_record(self.folder / "attempt.json", resume_plan(plan, self.folder, attempts))
        for name in ("exit.json", "started.json", "exit.json.tmp"):
            with contextlib.suppress(OSError):
                (self.folder / name).unlink()

    def requeue_job(self) -> bool:
        """Requeue the job; return whether the scheduler did, and so ends this process."""
        if not self.requeue:
            return False
        # Nothing is left to do at the end of the job, which would otherwise hold its node for
        # KillWait.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        (self.folder / TIME_LIMIT).touch()
        try:
            done = subprocess.run(self.requeue, stdin=subprocess.DEVNULL, timeout=REQUEUE_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"not requeued: {error}", flush=True)  # noqa: T201
            return False
        if done.returncode == 0:
            time.sleep(REQUEUE_SECONDS)
        return done.returncode == 0

    def note_warning(self, *_: object) -> None:
        self.is_warned = True
        if self.shim is not None:
            self.pass_on(signal.SIGTERM)

    def pass_on(self, number: int, *_: object) -> None:
        if self.shim is None:
            sys.exit(128 + number)
        if self.shim.poll() is None:
            self.shim.send_signal(number)


def code_of(ended: dict[str, Any]) -> int:
    """The exit code of the command, 1 if it has none."""
    code = ended.get("code")
    if isinstance(code, int):
        return int(code)
    return 1


def main() -> int:
    os.umask(0o077)
    verb = sys.argv[1]
    folder = Path(sys.argv[2])
    arguments = sys.argv[3:]
    if verb == "body":
        try:
            return Body(folder, arguments[0], arguments[1:]).run()
        except OSError as error:
            raise SystemExit(f"{PROGRAM}: {error.filename or folder}: {error.strerror or error}") from None
    if verb == "stream":
        return stream(Path.home() / folder, arguments[0])
    if verb == "report":
        # An interpreter may be a site's script, which prints text of its own.
        print(f"\n{frame(report(folder, json.load(sys.stdin)))}")  # noqa: T201
    elif verb == "signal":
        if (pid := served_by(folder)) is not None:
            os.kill(pid, int(arguments[0]))
    elif verb == "shim":
        from gputui.runs.shim import Shim

        return Shim(folder, []).run()
    elif verb == "node":
        from gputui.runs.executors.slurm.nodes import NodeShim

        return NodeShim(folder, arguments[0]).run()
    else:
        raise SystemExit(f"{PROGRAM}: {verb}?")
    return 0
