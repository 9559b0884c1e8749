"""Token files from documents: written by several processes, and resumable after a kill.

::

    train-00003.bin     rows of tokens of the 4th slice of the inputs; val-00003.bin: those held out
    train-00003.marks   a byte per token: whether the loss covers it, and whether a document begins there
    journal.jsonl       the inputs and settings (first line), and a line per finished slice
    tokenizer/          the tokenizer, with the chat template that was used
    meta.json           written last; without it the folder is not usable

A slice is finished when its line is in the journal, which is written after its files. The files depend on the inputs
and the plan alone, not on the number of processes or interruptions.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from trainer.errors import SettingsError, TrainerError, show
from trainer.preparing.documents import Slice, TextDocument, cut_into_slices, list_files, read_documents
from trainer.preparing.packing import pack, split_document
from trainer.tokenizer import Encoded, Tokenizer

JOURNAL = "journal.jsonl"
META = "meta.json"

_FORMAT = 1
_BATCH_TEXTS = 256  # texts per call of the tokenizer
_PROMPTS = 4  # held-out prompts in meta.json, for --answer-every
_PROMPT_TOKENS = 32  # length of a prompt from a text
_PROGRESS_EVERY = 5.0  # seconds
_COUNTS = ("documents", "rows", "held_out_rows", "tokens", "learnt", "padding", "shortened", "left_out")


@dataclass(frozen=True)
class PreparationPlan:
    """What to prepare. The token files depend on nothing else.

    Attributes:
        inputs: files, and folders of files.
        tokenizer: the folder of the tokenizer.
        context: rows have one token more.
        held_out: one document in so many is held out, chosen by its content, unless names of files say it.
        column: the text of rows that are no conversations.
    """

    inputs: tuple[Path, ...]
    tokenizer: Path
    context: int
    held_out: int = 25
    column: str = "text"


@dataclass(frozen=True)
class Prepared:
    """The result of `prepare`: documents, and tokens without padding, in the folder.

    `finished` is False if it was stopped.
    """

    finished: bool
    documents: int
    tokens: int
    seconds: float


def prepare(
    plan: PreparationPlan, folder: Path, *, processes: int | None = None, stopping: Callable[[], bool] = lambda: False
) -> Prepared:
    """Prepare `folder`, continuing an earlier call with the same plan; stop early once `stopping` returns True.

    Shows progress on stderr. Raises TrainerError naming file and line of a wrong document, and SettingsError if the
    folder holds tokens of another plan.
    """
    began = time.monotonic()
    tokenizer = Tokenizer(plan.tokenizer)
    if plan.context < 8 or plan.held_out < 2:
        raise SettingsError("--context must be 8 or more, and --held-out 2 or more")
    slices = _slices(plan)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _journal(folder, _identity(plan, tokenizer, slices)) as (file, finished):
            if not (folder / META).is_file():
                tokenizer.copy_to(folder / "tokenizer")
                pool = _Pool(plan, folder, slices, file, finished, stopping)
                complete = pool.run(min(processes or len(os.sched_getaffinity(0)), len(slices)))
                if complete:
                    _write_meta(folder, plan, tokenizer, finished)
            else:
                complete = True
    except OSError as error:
        raise TrainerError(f"{error.filename or folder}: {error.strerror}") from None
    documents, tokens = (sum(line[key] for line in finished.values()) for key in ("documents", "tokens"))
    return Prepared(complete, documents, tokens, time.monotonic() - began)


# --- the plan and its journal -----------------------------------------------------------------------------------------


def _slices(plan: PreparationPlan) -> list[Slice]:
    files = list_files(plan.inputs)
    by_name = any(held_out for _, held_out in files)
    slices = [
        part for path, held_out in files for part in cut_into_slices(path, held_out=held_out if by_name else None)
    ]
    if not slices:
        raise TrainerError(f"{plan.inputs[0]} is empty")
    return slices


def _identity(plan: PreparationPlan, tokenizer: Tokenizer, slices: list[Slice]) -> dict[str, Any]:
    """The first line of the journal: all that the token files depend on."""
    files = {str(part.path): part.path.stat() for part in slices}
    return {
        "format": _FORMAT,
        "context": plan.context,
        "held_out": plan.held_out,
        "column": plan.column,
        "tokenizer": tokenizer.digest(),
        "files": [[path, stat.st_size, stat.st_mtime_ns] for path, stat in files.items()],
        "slices": len(slices),
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
            raise SettingsError(
                f"{folder} holds tokens of other inputs, another tokenizer or another --context; name another folder"
            )
        file.truncate(len(whole.encode()))
        if not lines:
            _append(file, identity)
        yield file, {line["slice"]: line for line in lines[1:]}


def _append(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()
    os.fsync(file.fileno())


def _write_meta(folder: Path, plan: PreparationPlan, tokenizer: Tokenizer, finished: dict[int, dict[str, Any]]) -> None:
    parts = [finished[number] for number in sorted(finished)]
    totals = {key: sum(part[key] for part in parts) for key in _COUNTS}
    for key, purpose in (("rows", "to train on"), ("held_out_rows", "held out")):
        if not totals[key]:
            raise TrainerError(
                f"none of {totals['documents']} documents is {purpose}; add documents, or name files train… and val…"
            )
    meta = {
        "dtype": _dtype(tokenizer),
        "vocabulary": tokenizer.size,
        "row": plan.context + 1,
        "tokenizer": "tokenizer",
        **totals,
        "prompts": _first_prompts(prompt for part in parts for prompt in part["prompts"]),
    }
    _replace(folder / META, json.dumps(meta).encode() + b"\n")


def _first_prompts(prompts: Iterable[list[int]]) -> list[list[int]]:
    """The first few distinct prompts."""
    return [list(prompt) for prompt in dict.fromkeys(map(tuple, prompts))][:_PROMPTS]


def _dtype(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.size <= 1 << 16 else "uint32"


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


# --- on all cores -----------------------------------------------------------------------------------------------------


class _Pool:
    """Prepares the unfinished slices in processes, and writes each result to the journal."""

    def __init__(
        self,
        plan: PreparationPlan,
        folder: Path,
        slices: list[Slice],
        journal: TextIO,
        finished: dict[int, dict[str, Any]],
        stopping: Callable[[], bool],
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._slices = slices
        self._journal = journal
        self._finished = finished
        self._stopping = stopping
        self._began = time.monotonic()
        self._earlier_tokens = sum(line["tokens"] for line in finished.values())
        self._shown_at = -_PROGRESS_EVERY

    def run(self, processes: int) -> bool:
        """Prepare until all slices are finished or `stopping` returns True. Returns whether all are finished."""
        missing = [number for number in range(len(self._slices)) if number not in self._finished]
        if not missing:
            return True
        context = multiprocessing.get_context("spawn")
        unrelated = set(multiprocessing.active_children())
        running: dict[Future[dict[str, Any]], int] = {}
        with ProcessPoolExecutor(processes, context, _start_process, (self._plan, self._folder)) as pool:
            try:
                while (missing or running) and not self._stopping():
                    while missing and len(running) < 2 * processes:
                        number = missing.pop(0)
                        running[pool.submit(_prepare_slice, number, self._slices[number])] = number
                    done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                    for future in done:
                        number = running.pop(future)
                        self._finished[number] = future.result()
                        _append(self._journal, self._finished[number])
                    self._progress(processes, last=not (missing or running))
            except BrokenProcessPool:
                if not self._stopping():
                    raise TrainerError("a process that prepares tokens died; was there too little memory?") from None
            finally:
                if self._stopping():
                    # Unfinished slices are prepared again, so nothing is lost.
                    for process in set(multiprocessing.active_children()) - unrelated:
                        process.kill()
                pool.shutdown(cancel_futures=True)
        return len(self._finished) == len(self._slices)

    def _progress(self, processes: int, *, last: bool) -> None:
        elapsed = time.monotonic() - self._began
        if not last and elapsed - self._shown_at < _PROGRESS_EVERY:
            return
        self._shown_at = elapsed
        tokens = sum(line["tokens"] for line in self._finished.values())
        rate = (tokens - self._earlier_tokens) / elapsed
        share = len(self._finished) / len(self._slices)
        show(
            f"prepare: {share:4.0%}  {len(self._finished)} of {len(self._slices)} slices  {tokens:,} tokens"
            f"  {rate:,.0f} tokens/s  {processes} processes",
            error=True,
        )


# Of a process of the pool, set by `_start_process`.
_worker: tuple[PreparationPlan, Path, Tokenizer] | None = None


def _start_process(plan: PreparationPlan, folder: Path) -> None:
    """Set up a process of the pool: load the tokenizer once, and end with the parent."""
    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many processes as cores
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole process group; the parent handles it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = plan, folder, Tokenizer(plan.tokenizer)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _prepare_slice(number: int, part: Slice) -> dict[str, Any]:
    """Write the files of a slice. Returns its line of the journal."""
    assert _worker is not None
    plan, folder, tokenizer = _worker
    row = plan.context + 1
    counts = dict.fromkeys(_COUNTS, 0)
    train: list[Encoded] = []
    val: list[Encoded] = []
    prompts: list[list[int]] = []
    for document, encoded in _encode_documents(part, plan, tokenizer):
        counts["documents"] += 1
        is_text = isinstance(document.content, str)
        if not is_text and len(encoded.tokens) > row:
            # The rest of a conversation is dropped: it means little without the beginning.
            counts["shortened"] += 1
            encoded = Encoded(encoded.tokens[:row], encoded.learn[:row])
        pieces = split_document(encoded, row)
        if not pieces:
            counts["left_out"] += 1
            continue
        # By content: duplicates are all in one split, and stay there when documents are added.
        by_content = zlib.crc32(json.dumps(document.content).encode()) % plan.held_out == 0
        held_out = by_content if part.held_out is None else part.held_out
        (val if held_out else train).extend(pieces)
        if held_out:
            first = int(np.argmax(encoded.learn)) if not is_text else min(_PROMPT_TOKENS, len(encoded.tokens) // 2)
            if 0 < first < plan.context:
                prompts.append(encoded.tokens[:first].tolist())
    for name, pieces, rows in (("train", train, "rows"), ("val", val, "held_out_rows")):
        tokens, marks = pack(pieces, row, tokenizer.pad)
        counts[rows] = len(tokens)
        used = sum(len(piece.tokens) for piece in pieces)
        counts["tokens"] += used
        counts["learnt"] += sum(int(piece.learn[1:].sum()) for piece in pieces)
        counts["padding"] += tokens.size - used
        if len(tokens):
            _replace(folder / f"{name}-{number:05d}.marks", marks.tobytes())
            values: npt.NDArray[Any] = tokens.astype("<u2" if _dtype(tokenizer) == "uint16" else "<u4")
            _replace(folder / f"{name}-{number:05d}.bin", values.tobytes())
    return {"slice": number, **counts, "prompts": _first_prompts(prompts)}


def _encode_documents(
    part: Slice, plan: PreparationPlan, tokenizer: Tokenizer
) -> Iterator[tuple[TextDocument, Encoded]]:
    """Tokenize the documents of a slice. Texts are tokenized in batches, so they may follow later conversations."""
    texts: list[TextDocument] = []

    def encode_texts() -> Iterator[tuple[TextDocument, Encoded]]:
        yield from zip(texts, tokenizer.texts([str(text.content) for text in texts]), strict=True)
        texts.clear()

    for document in read_documents(part, plan.column):
        if isinstance(document.content, str):
            texts.append(document)
            if len(texts) == _BATCH_TEXTS:
                yield from encode_texts()
            continue
        try:
            encoded = tokenizer.conversation(document.content)
        except ValueError as error:
            raise TrainerError(f"{document.where()}: {error}") from None
        yield document, encoded
    yield from encode_texts()
