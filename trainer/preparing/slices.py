"""The token files of one slice of the documents, which depend on the slice and the plan alone."""

from __future__ import annotations

import functools
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import TrainerError, show
from trainer.preparing.documents import Slice, read_documents
from trainer.preparing.packing import pack, split_document
from trainer.tokenizer import Encoded, Messages, Tokenizer

PROMPTS = 4  # held-out prompts in meta.json, for --answer-every

_MOST_REFUSED = 100  # conversations of a slice that are left out before preparing ends, as of unreadable samples
_PROMPT_TOKENS = 32  # length of a prompt from a text


@dataclass(frozen=True)
class PreparationPlan:
    """The input of a preparation. The token files depend on nothing else.

    One document in `held_out` is held out, chosen by its content, unless names of files say it. `column` has the text
    of rows that are no conversations. Rows have one token more than `context`.
    """

    inputs: tuple[Path, ...]
    tokenizer: Path
    context: int
    held_out: int = 25
    column: str = "text"


@dataclass
class Counts:
    """What became of the documents of a slice.

    Attributes:
        tokens: without padding; `learnt` ones are covered by the loss.
        shortened: conversations that were longer than a row.
        left_out: documents of which nothing is learnt, or that the chat template refused.
        passed_over: answers that are not learnt.
    """

    documents: int = 0
    rows: int = 0
    held_out_rows: int = 0
    tokens: int = 0
    learnt: int = 0
    padding: int = 0
    shortened: int = 0
    left_out: int = 0
    passed_over: int = 0


def prepare_slice(plan: PreparationPlan, folder: Path, number: int, part: Slice) -> dict[str, Any]:
    """Write the files of a slice. Returns its line of the journal."""
    rows = SliceRows(plan, _loaded(plan.tokenizer))
    for content, where in read_documents(part, plan.column):
        held_out = part.held_out
        if held_out is None:
            # By content: duplicates are all in one split, and stay there when documents are added.
            held_out = zlib.crc32(json.dumps(content).encode()) % plan.held_out == 0
        try:
            rows.add(content, held_out=held_out)
        except ValueError as error:
            rows.leave_out(f"{where()}: {error} (of tokenizer {plan.tokenizer})")
    if rows.refused:
        show(f"prepare: {rows.refused} conversations are left out; {rows.refusal}", error=True)
    rows.write(folder, number)
    return {"slice": number, **vars(rows.counts), "prompts": list(rows.prompts), "refusal": rows.refusal}


_loaded = functools.cache(Tokenizer)  # once in each process of the pool


class SliceRows:
    """The documents of a slice, split and then packed into rows.

    Attributes:
        prompts: distinct held-out ones, in their order.
        refused: the number of conversations that the chat template refused, and why it refused the first, the
            `refusal`.
    """

    def __init__(self, plan: PreparationPlan, tokenizer: Tokenizer) -> None:
        self.counts = Counts()
        self.prompts: dict[tuple[int, ...], None] = {}
        self.refused = 0
        self.refusal = ""
        self._tokenizer = tokenizer
        self._context = plan.context
        self._row = plan.context + 1
        self._pieces: dict[str, list[Encoded]] = {"train": [], "val": []}

    def add(self, content: str | Messages, *, held_out: bool) -> None:
        """Add a document. Raises ValueError if the chat template refuses it."""
        self.counts.documents += 1
        encoded = self._tokenizer.document(content)
        self.counts.passed_over += encoded.passed_over
        is_text = isinstance(content, str)
        if not is_text and len(encoded.tokens) > self._row:
            # The rest of a conversation is dropped: it means little without the beginning.
            self.counts.shortened += 1
            encoded = Encoded(encoded.tokens[: self._row], encoded.learn[: self._row])
        pieces = split_document(encoded, self._row)
        self.counts.left_out += not pieces
        split = "val" if held_out else "train"
        self._pieces[split] += pieces
        if pieces and held_out:
            self._add_prompt(encoded, is_text=is_text)

    def _add_prompt(self, encoded: Encoded, *, is_text: bool) -> None:
        """Take the beginning of a text, or of a conversation what comes before the first answer, as a prompt."""
        end = int(np.argmax(encoded.learn))
        if is_text:
            end = min(_PROMPT_TOKENS, len(encoded.tokens) // 2)
        if 0 < end < self._context and len(self.prompts) < PROMPTS:
            self.prompts[tuple(encoded.tokens[:end].tolist())] = None

    def leave_out(self, refusal: str) -> None:
        """Leave out a conversation that the chat template refused. Raises TrainerError if it has refused many."""
        self.refused += 1
        self.counts.left_out += 1
        self.refusal = self.refusal or refusal
        if self.refused > _MOST_REFUSED:
            raise TrainerError(f"more than {_MOST_REFUSED} conversations cannot be used; {self.refusal}") from None

    def write(self, folder: Path, number: int) -> None:
        """Pack the rows of both splits, and write their files."""
        self.counts.rows = self._write(folder, "train", number)
        self.counts.held_out_rows = self._write(folder, "val", number)

    def _write(self, folder: Path, split: str, number: int) -> int:
        """Write the files of a split, unless it is empty. Returns its number of rows."""
        pieces = self._pieces[split]
        tokens, marks = pack(pieces, self._row, self._tokenizer.pad)
        used = sum(len(piece.tokens) for piece in pieces)
        self.counts.tokens += used
        self.counts.learnt += sum(int(piece.learn[1:].sum()) for piece in pieces)
        self.counts.padding += tokens.size - used
        if len(tokens):
            replace(folder / f"{split}-{number:05d}.marks", marks.tobytes())
            replace(folder / f"{split}-{number:05d}.bin", tokens.astype(token_type(self._tokenizer)).tobytes())
        return len(tokens)


def token_type(tokenizer: Tokenizer) -> str:
    """The smallest type of numbers that has room for all tokens."""
    if tokenizer.size <= 1 << 16:
        return "uint16"
    return "uint32"


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically, once the content is on disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
