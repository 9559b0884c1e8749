"""The remote side's choice of a checkpoint, where nobody else sees them."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gputui.runs.checkpoint_formats import validate
from gputui.runs.executors import remote
from gputui.runs.executors.remote_checkpoints import newest_checkpoint, read_periods
from gputui.runs.executors.remote_runner import PROGRAM_MAIN, zipapp
from tests.tables import table

SHA256 = hashlib.sha256(b"weights").hexdigest()

# Sends the body that started it Slurm's warning of the time limit, then ends as if it had been stopped.
WARNED_SHIM = """
import json, os, pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getppid(), signal.SIGUSR1)
signal.sigwait([signal.SIGTERM])
pathlib.Path(sys.argv[2], "exit.json").write_text(json.dumps({"code": 0, "stop_requested": True}))
"""
# Gets the warning while the body looks for checkpoints, before the shim is started.
WARNED_BODY = (
    "from gputui.runs.executors import remote\nremote.Body.claim_attempt = lambda body: body.note_warning() or True\n"
)


class RemoteFolder:
    """A run's folder there; hours are those of its clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoints = root / "checkpoints"
        self.checkpoints.mkdir()

    def attempt(self, number: int, begun: float, ended: float, base: str | None = None) -> None:
        folder = self.folder(number)
        folder.mkdir(parents=True)
        (folder / "claim").write_text("token")
        os.utime(folder / "claim", (begun * 3600,) * 2)
        (folder / "exit.json").write_text(json.dumps({"code": 1, "ended_at": ended * 3600}))
        resumed = None if base is None else str(self.checkpoints / base)
        (folder / "attempt.json").write_text(json.dumps({"attempt": number, "resume_from": resumed}))

    def folder(self, number: int) -> Path:
        return self.root / "attempts" / str(number) / "remote"

    def save(self, name: str, at: float) -> None:
        with zipfile.ZipFile(self.checkpoints / name, "w") as archive:
            archive.writestr("weights", "w")
        os.utime(self.checkpoints / name, (at * 3600,) * 2)

    def newest_name(self, *lineage: dict[str, Any]) -> str | None:
        path = newest_checkpoint(self.checkpoints, "*.pt", read_periods(self.folder(9), list(lineage)))
        return None if path is None else Path(path).name


def of(attempt: int, *, end: float | None = None, failed: bool = False) -> dict[str, Any]:
    return {"attempt": attempt, "until": None if end is None else end * 3600, "failed": failed}


@pytest.fixture
def remote_folder(tmp_path: Path) -> RemoteFolder:
    remote_folder = RemoteFolder(tmp_path)
    remote_folder.attempt(1, 1.0, 3.0)
    remote_folder.attempt(2, 4.0, 6.0)
    for name, at in (("other.pt", 0.5), ("step_10.pt", 1.5), ("step_20.pt", 2.5), ("between.pt", 3.5)):
        remote_folder.save(name, at)
    return remote_folder


def saved_by_zip(method: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        archive.writestr("state", bytes(range(256)) * 20)
    return content.getvalue()


WHOLE = saved_by_zip()
DEFLATED = saved_by_zip(zipfile.ZIP_DEFLATED)
DAMAGED = DEFLATED[:60] + b"\xff" * 20 + DEFLATED[80:]


def test_only_what_its_course_wrote_is_taken(remote_folder: RemoteFolder) -> None:
    assert remote_folder.newest_name(of(1), of(2)) == "step_20.pt"
    assert remote_folder.newest_name(of(2)) is None
    remote_folder.save("step_30.pt", 5.0)
    assert remote_folder.newest_name(of(1), of(2)) == "step_30.pt"
    assert remote_folder.newest_name() is None
    assert remote_folder.newest_name(of(7)) is None


def test_what_was_written_after_numbers_went_wrong_is_not(remote_folder: RemoteFolder) -> None:
    assert remote_folder.newest_name(of(1, end=2.0)) == "step_10.pt"
    assert remote_folder.newest_name(of(1, end=1.0)) is None


def test_one_that_could_not_be_begun_from_is_tried_after_those_before(remote_folder: RemoteFolder) -> None:
    remote_folder.attempt(3, 7.0, 7.1, "step_20.pt")
    assert remote_folder.newest_name(of(1), of(3)) == "step_20.pt"
    assert remote_folder.newest_name(of(1), of(3, failed=True)) == "step_10.pt"
    (remote_folder.checkpoints / "step_10.pt").unlink()
    assert remote_folder.newest_name(of(1), of(3, failed=True)) == "step_20.pt"


@pytest.mark.parametrize(
    ("index_at", "shard_at", "expected"), [(5.2, 5.1, "latest.pt"), (5.0, 5.1, "step_20.pt"), (None, 5.1, "step_20.pt")]
)
def test_a_distributed_checkpoint_whose_save_was_cut_short_is_not_taken(
    remote_folder: RemoteFolder, index_at: float | None, shard_at: float, expected: str
) -> None:
    folder = remote_folder.checkpoints / "latest.pt"
    folder.mkdir()
    for name, at in (("__0_0.distcp", shard_at), (".metadata", index_at)):
        if at is not None:
            (folder / name).write_text("w")
            os.utime(folder / name, (at * 3600,) * 2)
    os.utime(folder, (5.1 * 3600,) * 2)
    assert remote_folder.newest_name(of(1), of(2)) == expected


@table("files, verdict", [
    ({"a.pt": WHOLE}, "valid"), ({"a.pt": DEFLATED}, "valid"), ({"a.pt": DAMAGED}, "damaged"),
    ({"a.pt": WHOLE[:-1]}, "damaged"), ({"a.pt": b""}, "damaged"),
    # As torch.save wrote before its release 1.6.
    ({"a.pt": b"\x80\x02\x8a\nl\xfc"}, "unknown"), ({"a.json": b"{}"}, "unknown"),
    ({"a.raw": b"weights", "a.raw.sha256": SHA256.encode()}, "valid"),
    ({"a.raw": b"weight", "a.raw.sha256": SHA256.encode()}, "damaged"),
    ({"a.pt.gz": gzip.compress(b"weights")}, "valid"), ({"a.pt.gz": gzip.compress(b"weights")[:-4]}, "damaged"),
    ({"a.safetensors": (2).to_bytes(8, "little") + b"{}"}, "valid"), ({"a.safetensors": b"{}"}, "damaged"),
    ({"a/model.pt": WHOLE, "a/config.json": b"{}"}, "valid"), ({"a/model.pt": WHOLE, "a/optimizer.pt": b""}, "damaged"),
    ({"a/model.pt": b"\x80\x02"}, "unknown"), ({"a/__0_0.distcp": b"w"}, "damaged"),
    ({"a/.metadata": b"__0_0.distcp", "a/__0_0.distcp": b"w"}, "valid"), ({}, "missing"),
])  # fmt: skip
def test_both_sides_judge_a_checkpoint_alike(files: dict[str, bytes], verdict: str, tmp_path: Path) -> None:
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    path = tmp_path / next(iter(files), "gone.pt").partition("/")[0]
    (tmp_path / remote.PROGRAM).write_bytes(zipapp())
    # The remote Python has neither gputui's packages nor gputui itself.
    script = "import sys; sys.path[:0] = sys.argv[1:2]\nfrom gputui.runs.checkpoint_formats import validate, Path\n"
    argv = [sys.executable, "-I", "-S", "-c", f"{script}print(validate(Path(sys.argv[2])))"]
    done = subprocess.run(
        [*argv, tmp_path / remote.PROGRAM, path], capture_output=True, text=True, timeout=50, check=True
    )
    here = validate(path)
    assert done.stdout.strip() == str(here)
    flags = {"valid": here.valid, "unknown": here.is_unknown, "missing": here.is_missing}
    assert next((name for name, is_set in flags.items() if is_set), "damaged") == verdict


@table("newest, expected", [(DAMAGED, "step_20.pt"), (b"\x80\x02", "step_20.pt"), (WHOLE, "latest.pt")])
def test_one_that_can_be_checked_comes_before_a_newer_one_that_cannot(
    remote_folder: RemoteFolder, newest: bytes, expected: str
) -> None:
    (remote_folder.checkpoints / "latest.pt").write_bytes(newest)
    os.utime(remote_folder.checkpoints / "latest.pt", (5.1 * 3600,) * 2)
    assert remote_folder.newest_name(of(1), of(2)) == expected
    if newest == b"\x80\x02":
        assert remote_folder.newest_name(of(2)) == "latest.pt"


@table("known_bytes, most_bytes, sent, is_partial", [
    ({}, 9, {"m.jsonl": b"0123456789"[:9], "n.log": b"abcdefghij"[:9]}, True),
    ({"m.jsonl": 4}, 9, {"m.jsonl": b"456789", "n.log": b"abcdefghi"}, False),
    ({"m.jsonl": 10, "n.log": 10}, 9, {}, False), ({"m.jsonl": 12, "n.log": 10}, 9, {"m.jsonl": b"012345678"}, True),
])  # fmt: skip
def test_a_report_says_whether_it_has_all_metrics(
    remote_folder: RemoteFolder, known_bytes: dict[str, int], most_bytes: int, sent: dict[str, bytes], is_partial: bool
) -> None:
    (remote_folder.root / "m.jsonl").write_bytes(b"0123456789")
    logs = remote_folder.folder(2).parent / "nodes"
    logs.mkdir(exist_ok=True)
    (logs / "n.log").write_bytes(b"abcdefghij")
    names = {"m.jsonl": "m.jsonl", "n.log": str((logs / "n.log").relative_to(remote_folder.root))}
    request = {"metrics": ["*.jsonl"], "cuts": {}, "known": {names[name]: count for name, count in known_bytes.items()}}
    report = remote.report(remote_folder.folder(2), request, most_bytes)
    assert {name: base64.b64decode(part["data"]) for name, part in report["grown"].items()} == {
        names[name]: data for name, data in sent.items()
    }
    assert report["is_partial"] is is_partial


@pytest.mark.parametrize(("shim", "body"), [(WARNED_SHIM, ""), ("raise SystemExit", WARNED_BODY)])
def test_a_job_that_was_requeued_ends_at_the_first_signal(shim: str, body: str, tmp_path: Path) -> None:
    main = f"import sys\nif sys.argv[1] == 'shim':\n    exec({shim!r})\nelse:\n    exec({body + PROGRAM_MAIN!r})\n"
    with zipfile.ZipFile(io.BytesIO(zipapp())) as sent, zipfile.ZipFile(tmp_path / remote.PROGRAM, "w") as doctored:
        for name in sent.namelist():
            doctored.writestr(name, main if name == "__main__.py" else sent.read(name))
    requeue = ["sh", "-c", "kill -TERM $PPID"]
    argv = [sys.executable, "-I", "-S", str(tmp_path / remote.PROGRAM), "body", str(tmp_path), "7", *requeue]
    assert subprocess.run(argv, timeout=50, check=False).returncode == -signal.SIGTERM
