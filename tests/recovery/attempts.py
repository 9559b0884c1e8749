"""Attempts that have ended, laid out on disk as the shim and torchrun leave them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputui.recovery.evidence import Evidence, ExitRecord, collect

CORPUS = Path(__file__).parent / "corpus"
PEER_LOST = (
    "[rank{rank}]: Traceback (most recent call last):\n"
    '[rank{rank}]:   File "/home/me/train.py", line 22, in main\n'
    "[rank{rank}]:     work.wait()\n"
    "[rank{rank}]: RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection "
    "closed by peer [127.0.0.1]:9090. This is typically caused by a remote worker crashing. Check the logs of the "
    "remote worker before reporting an error. GLHF! 🏖️\n"
)


@dataclass(frozen=True)
class Case:
    """A recorded end: what was left, and what it should be taken for."""

    name: str
    kind: str
    rank: int | None
    last_step: int | None
    launcher: str
    exit: dict[str, Any]
    files: dict[str, str]

    def evidence(self, directory: Path, **more: Any) -> Evidence:
        lay_out(directory, self.files)
        return collect(
            directory,
            exit=ExitRecord.from_json(self.exit),
            ended_at=None,
            launcher=self.launcher,
            last_step=self.last_step,
            **more,
        )


def recorded() -> list[Case]:
    """The corpus of real logs."""
    return [_read(path) for path in sorted(CORPUS.glob("*.txt"))]


def lay_out(directory: Path, files: dict[str, str]) -> None:
    """Write files as torchrun would: ``ranks/1/stderr.log`` stands for the same below its own folders."""
    for name, text in files.items():
        if name.startswith("ranks/"):
            name = name.replace("ranks/", "ranks/job-1.1_x7f3k2/attempt_0/", 1)
        path = directory / (name if name.startswith("nodes/") or name == "attempt.json" else f"nodes/0/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def report(
    codes: dict[int, int], *, root: int, signalled: tuple[int, ...] = (), time: str = "2026-11-20_17:42:04"
) -> str:
    """torchrun's output for ranks that ended with these codes (negative for signals)."""

    def entry(index: int, rank: int) -> str:
        code = codes[rank]
        how = (
            f"Signal {-code} (SIGX) received by PID {700 + rank}" if code < 0 else "To enable traceback see: https://x"
        )
        return (
            f"[{index}]:\n  time      : {time}\n  host      : localhost\n  rank      : {rank} (local_rank: {rank})\n"
            f"  exitcode  : {code} (pid: {700 + rank}) \n  error_file: <N/A>\n  traceback : {how}\n"
        )

    prefix = "W1120 17:41:57.834000 18925 torch/distributed/elastic/multiprocessing/api.py:1028]"
    sent = "".join(f"{prefix} Sending process {700 + rank} closing signal SIGTERM\n" for rank in signalled)
    others = "".join(entry(i, rank) for i, rank in enumerate(codes) if rank != root) or "  <NO_OTHER_FAILURES>\n"
    root_cause = f"Root Cause (first observed failure):\n{entry(0, root)}"
    line = "=" * 60 + "\n"
    dash = "-" * 60 + "\n"
    return (
        f'{sent}Traceback (most recent call last):\n  File "run.py", line 1, in run\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        f"{line}train.py FAILED\n{dash}Failures:\n{others}{dash}{root_cause}{line}"
    )


def traceback(
    exception: str, *, rank: int | None = None, function: str = "main", file: str = "/home/me/train.py"
) -> str:
    """An interpreter's output for an uncaught exception, with PyTorch's prefix where a rank is
    given."""
    lines = [
        "Traceback (most recent call last):",
        f'  File "{file}", line 88, in {function}',
        "    step()",
        *exception.split("\n"),
    ]
    prefix = "" if rank is None else f"[rank{rank}]: "
    return "".join(f"{prefix}{line}\n" for line in lines)


def rank_failed(directory: Path, stderr: str, *, code: int = 1, stdout: str = "", **more: Any) -> Evidence:
    """Two ranks under torchrun: rank 1 ended with ``code`` after printing this, rank 0 lost the connection to it."""
    files = {
        "output.log": report({0: -15, 1: code}, root=1, signalled=(0,)),
        "ranks/0/stderr.log": PEER_LOST.format(rank=0),
        "ranks/1/stderr.log": stderr,
        "ranks/1/stdout.log": stdout,
    }
    lay_out(directory, files)
    exit_record = more.pop("exit", {"code": 1})
    return collect(directory, exit=ExitRecord.from_json(exit_record), ended_at=None, **{"last_step": 40, **more})


def process_ended(directory: Path, output: str, exit_record: dict[str, Any], **more: Any) -> Evidence:
    """A single process without torchrun."""
    lay_out(directory, {"output.log": output})
    return collect(
        directory,
        exit=ExitRecord.from_json(exit_record),
        ended_at=None,
        **{"last_step": 40, "launcher": "python", **more},
    )


def _read(path: Path) -> Case:
    head, *sections = path.read_text(encoding="utf-8").split("=== ")
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    files = {}
    for section in sections:
        name, _, text = section.partition("\n")
        files[name] = text
    return Case(
        path.stem,
        fields["kind"],
        json.loads(fields["rank"]),
        last_step=json.loads(fields["last_step"]),
        launcher=fields["launcher"],
        exit=json.loads(fields["exit"]),
        files=files,
    )
