"""Token files from documents: written by several processes, and resumable after a kill.

A slice of the inputs becomes train-00003.bin with rows of tokens and train-00003.marks with a byte per token (is it
learnt, does a document begin there); val-… are held out. A slice is finished when its line is in journal.jsonl, whose
first line has the inputs and settings. The tokenizer is copied to tokenizer/, and meta.json is written last. The files
depend on the inputs and the plan alone, not on the number of processes or interruptions.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from trainer.errors import SettingsError, TrainerError, show
from trainer.preparing.documents import Slice, list_slices
from trainer.preparing.slices import PROMPTS, Counts, PreparationPlan, prepare_slice, replace, token_type
from trainer.processes import end_with_parent
from trainer.tokenizer import Tokenizer

JOURNAL = "journal.jsonl"
META = "meta.json"
_SLICE_FILE = re.compile(r"\.?(train|val)-\d{5}\.(bin|marks)(\.tmp)?")

_PROGRESS_EVERY = 5.0  # seconds


@dataclass(frozen=True)
class Prepared:
    """Documents, and tokens without padding, in the folder; `finished` is False if preparing was stopped."""

    finished: bool
    documents: int
    tokens: int
    seconds: float


def prepare(
    plan: PreparationPlan, folder: Path, *, processes: int | None = None, stopping: Callable[[], bool] = lambda: False
) -> Prepared:
    """Prepare `folder`, continuing an earlier call with the same plan; stop early once `stopping` returns True.

    Shows progress on stderr. A few conversations that the chat template cannot render are left out. Raises TrainerError
    naming file and line of a wrong document, and SettingsError if the folder holds tokens of another plan.
    """
    began = time.monotonic()
    tokenizer = Tokenizer(plan.tokenizer)
    if plan.context < 8 or plan.held_out < 2:
        raise SettingsError("--context must be 8 or more, and --held-out 2 or more")
    try:
        slices = list_slices(plan.inputs)
        folder.mkdir(parents=True, exist_ok=True)
        with _journal(folder, _identity(plan, tokenizer, slices)) as (journal, finished):
            complete = (folder / META).is_file()
            if not complete:
                tokenizer.copy_to(folder / "tokenizer")
                missing = [(number, part) for number, part in enumerate(slices) if number not in finished]
                for line in _prepared(plan, folder, missing, processes or len(os.sched_getaffinity(0)), stopping):
                    finished[line["slice"]] = line
                    _append(journal, line)
                if complete := len(finished) == len(slices):
                    parts = [finished[number] for number in sorted(finished)]
                    if not (sum(part["rows"] for part in parts) and sum(part["held_out_rows"] for part in parts)):
                        _forget_slices(journal)
                        raise _too_few(parts)
                    _write_meta(folder, plan, tokenizer, parts)
    except OSError as error:
        raise TrainerError(f"{error.filename or folder}: {error.strerror}") from None
    documents, tokens = (sum(line[key] for line in finished.values()) for key in ("documents", "tokens"))
    return Prepared(complete, documents, tokens, time.monotonic() - began)


# --- the plan and its journal -----------------------------------------------------------------------------------------


def _identity(plan: PreparationPlan, tokenizer: Tokenizer, slices: list[Slice]) -> dict[str, Any]:
    """The first line of the journal: all that the token files depend on."""
    files = {str(part.path): part.path.stat() for part in slices}
    return {
        "files": [[path, stat.st_size, stat.st_mtime_ns] for path, stat in files.items()],
        "tokenizer": tokenizer.digest(),
        "plan": [plan.context, plan.held_out, plan.column],
    }


@contextlib.contextmanager
def _journal(folder: Path, identity: dict[str, Any]) -> Iterator[tuple[TextIO, dict[int, dict[str, Any]]]]:
    """The journal, locked and open for appending, and its lines by slice."""
    with (folder / JOURNAL).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SettingsError(f"{folder} is being prepared by another process") from None
        file.seek(0)
        text = file.read()
        whole = text[: text.rfind("\n") + 1]  # without a line that a killed process left incomplete
        lines = [json.loads(line) for line in whole.splitlines()]
        if lines and lines[0] != identity:
            _require_no_slices(folder, lines)
            whole = ""
            lines = []
        file.truncate(len(whole.encode()))
        if not lines:
            _append(file, identity)
        yield file, {line["slice"]: line for line in lines[1:]}


def _require_no_slices(folder: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Raise SettingsError if another plan's journal has finished slices; delete what it has left of others."""
    if len(lines) > 1:
        raise SettingsError(
            f"{folder} holds tokens of other inputs, another tokenizer or another --context; name another folder"
        )
    for path in folder.iterdir():
        if _SLICE_FILE.fullmatch(path.name):
            path.unlink()


def _forget_slices(journal: TextIO) -> None:
    """Truncate a journal to its first line: what it lists cannot be used, and other inputs may take its place."""
    journal.seek(0)
    journal.truncate(len(journal.readline().encode()))


def _too_few(parts: list[dict[str, Any]]) -> TrainerError:
    used = sum(part["documents"] - part["left_out"] for part in parts)
    few = f"{used} documents are too few to train on some and hold others out; add documents, or "
    refusals = (part["refusal"] for part in parts if part["refusal"])
    return TrainerError("; left out: ".join([f"{few}name files train… and val…", *itertools.islice(refusals, 1)]))


def _append(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()
    os.fsync(file.fileno())


def _write_meta(folder: Path, plan: PreparationPlan, tokenizer: Tokenizer, parts: list[dict[str, Any]]) -> None:
    totals = {key: sum(part[key] for part in parts) for key in vars(Counts())}
    if totals["passed_over"]:
        reason = "once more follows, the chat template renders them otherwise"
        show(f"prepare: {totals['passed_over']} answers are not learnt: {reason}", error=True)
    meta = {
        "dtype": token_type(tokenizer),
        "vocabulary": tokenizer.size,
        "row": plan.context + 1,
        "tokenizer": "tokenizer",
        **totals,
        "prompts": list(dict.fromkeys(tuple(prompt) for part in parts for prompt in part["prompts"]))[:PROMPTS],
    }
    replace(folder / META, json.dumps(meta).encode() + b"\n")


# --- on all cores -----------------------------------------------------------------------------------------------------


def _prepared(
    plan: PreparationPlan, folder: Path, slices: list[tuple[int, Slice]], processes: int, stopping: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """Prepare slices in processes, until all are finished or `stopping` returns True. Yields lines for the journal."""
    began = shown_at = time.monotonic()
    tokens = done = 0
    waiting = slices[::-1]
    running = set[Future[dict[str, Any]]]()
    processes = max(1, min(processes, len(slices)))
    unrelated = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _start_process) as pool:
        try:
            while (waiting or running) and not stopping():
                while waiting and len(running) < 2 * processes:
                    running.add(pool.submit(prepare_slice, plan, folder, *waiting.pop()))
                ready, running = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in ready:
                    yield future.result()
                    tokens += future.result()["tokens"]
                    done += 1
                now = time.monotonic()
                if now - shown_at >= _PROGRESS_EVERY or not (waiting or running):
                    shown_at = now
                    speed = tokens / (now - began)
                    progress = f"{done / len(slices):4.0%}  {done} of {len(slices)} slices  {tokens:,} tokens"
                    show(f"prepare: {progress}  {speed:,.0f} tokens/s  {processes} processes", error=True)
        except BrokenProcessPool:
            if not stopping():
                raise TrainerError("a process that prepares tokens died; was there too little memory?") from None
        finally:
            if stopping():
                # Unfinished slices are prepared again, so nothing is lost.
                for process in set(multiprocessing.active_children()) - unrelated:
                    process.kill()
            pool.shutdown(cancel_futures=True)


def _start_process() -> None:
    """Set up a process of the pool, which ends with its parent."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many processes as cores
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole process group; the parent handles it
    threading.Thread(target=end_with_parent, daemon=True).start()
