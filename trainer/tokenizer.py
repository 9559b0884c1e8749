"""A Hugging Face tokenizer folder: texts and conversations to tokens, and back.

Imports no torch: processes that only prepare tokens start fast and stay small.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.errors import TrainerError, one_line

Messages = Sequence[Mapping[str, str]]

_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model"),
)

# For tokenizers without a template of their own: the role, its words, and the end-of-sequence token after each answer.
SIMPLE_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] | capitalize }}:\n{{ message['content'] | trim }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:\n{% endif %}"
)

# Noncharacters of Unicode, which no text holds: inside of what is no special token, and in the place of an answer.
_BREAK = "\ufdd0"
_ANSWER = "\ufdd1"
_BROKEN = rf"\g<0>{_BREAK}"  # what replaces the first character of a special token


@dataclass(frozen=True)
class Encoded:
    """A document: uint32 tokens [n], and for each whether the loss covers it, bool [n].

    `passed_over` counts the answers in it that are not learnt.
    """

    tokens: npt.NDArray[np.uint32]
    learn: npt.NDArray[np.bool_]
    passed_over: int = 0


class Tokenizer:
    """`folder` holds a tokenizer.json; its chat template, or else SIMPLE_TEMPLATE, renders conversations.

    `size` is the number of tokens, `bos` and `eos` are put before and after a text (None: no such token), `pad` fills
    rows and is never learnt. Raises TrainerError if the folder holds no usable tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "tokenizer.json").is_file():
            raise TrainerError(f"{folder} has no tokenizer.json; give the folder of a (fast) Hugging Face tokenizer")
        try:
            from transformers import PreTrainedTokenizerFast

            loaded: Any = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # the libraries raise many types for a damaged file; all mean the same
            raise TrainerError(f"{folder} is no tokenizer: {one_line(error)[:300]}") from None
        self.folder = folder
        self._files = [path for name in _FILES if (path := folder / name).is_file()]
        self.size = len(loaded)
        self.eos: int | None = loaded.eos_token_id
        self.bos: int | None = self.eos if loaded.bos_token_id is None else loaded.bos_token_id
        self.pad = next((token for token in (loaded.pad_token_id, self.eos, self.bos) if token is not None), 0)
        self._has_template = loaded.chat_template is not None
        if not self._has_template:
            if self.eos is None:
                raise TrainerError(f"{folder} has neither a chat template nor an end-of-sequence token")
            loaded.bos_token = loaded.bos_token or loaded.eos_token
            loaded.chat_template = SIMPLE_TEMPLATE
        self._loaded = loaded
        self._added = loaded.added_tokens_decoder
        self._specials = [token.content for token in self._added.values() if token.special]
        self._any_special = _beginnings(self._specials)
        self._fast = loaded.backend_tokenizer
        self._fast.no_truncation()
        self._fast.no_padding()

    def document(self, content: str | Messages) -> Encoded:
        """Tokenize a text between `bos` and `eos`, or a conversation, of which the assistant's turns are learnt.

        A token belongs to the message with its first character. An answer that the template renders otherwise once more
        follows, such as without its thoughts, is not learnt. Raises ValueError if the template refuses the messages, or
        if it is not seen where the last one, an answer, begins.
        """
        if isinstance(content, str):
            ids = [*self.beginning(content), *self._eos]
            return Encoded(np.array(ids, dtype=np.uint32), np.arange(len(ids)) > 0)
        text = self.rendered(content)
        ids, offsets = self._encode(text)
        starts = np.array(offsets, dtype=np.int64)
        learn = np.zeros(len(starts), dtype=np.bool_)
        passed_over = 0
        for number, message in enumerate(content):
            if message["role"] != "assistant":
                continue
            after = self.rendered(content[: number + 1])
            start = self._answer_start(content[:number], after)
            if start is not None and text.startswith(after):
                learn |= (starts >= start) & (starts < len(after.rstrip()))
            elif number == len(content) - 1:
                raise ValueError("the chat template renders an answer otherwise than what asks for it")
            else:
                passed_over += 1
        return Encoded(np.array(ids, dtype=np.uint32), learn, passed_over)

    def _answer_start(self, prompt: Messages, answered: str) -> int | None:
        """Where the answer to a prompt begins in their rendering; None where that does not begin with the prompt.

        A prompt may open a thought that answers do not have: then the answer begins where the opening would. Example:
        with the prompt ``user: hi assistant: <think>`` the answer in ``user: hi assistant: Hello`` begins at Hello.
        """
        asking = self.rendered(prompt, answer=True)
        if answered.startswith(asking):
            return len(asking)
        header, answer, _ = self.rendered([*prompt, {"role": "assistant", "content": _ANSWER}]).partition(_ANSWER)
        if answer and asking.startswith(header) and answered.startswith(header):
            return len(header)
        return None

    def beginning(self, text: str) -> list[int]:
        """The tokens of a plain text for the model to continue. Special tokens written in it are text."""
        pieces = self._any_special.sub(_BROKEN, text).split(_BREAK)
        # Not `_encode`: the offsets of a long text take more memory than the text.
        ids = [token for piece in pieces for token in self._fast.encode(piece, add_special_tokens=False).ids]
        if self.bos is None:
            return ids
        return [self.bos, *ids]

    def prompt(self, messages: Messages) -> list[int]:
        """The tokens of a prompt, which the model continues with an answer."""
        return self._encode(self.rendered(messages, answer=True))[0]

    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        """Tokens of a rendered text, and where each begins in it. What `_BREAK` separates is tokenized apart.

        Example: of ``<`` `_BREAK` ``eos> b``, written by a user, no token is the special ``<eos>``; the token ``b``
        begins at 6, because the break counts as a character.
        """
        ids = list[int]()
        starts = list[int]()
        offset = 0
        for piece in text.split(_BREAK):
            encoding = self._fast.encode(piece, add_special_tokens=False)
            ids += encoding.ids
            starts += [offset + start for start, _ in encoding.offsets]
            offset += len(piece) + 1
        return ids, starts

    def rendered(self, messages: Messages, *, answer: bool = False) -> str:
        """Render a conversation as text; with `answer`, end with the start of the assistant's turn.

        Special tokens written in messages are text: `_BREAK` is inside of them. In what the assistant says, only those
        are that would end or begin a turn. It may have been taught to write others, such as around its thoughts, and
        templates look for them.
        """
        texts = []
        for message in messages:
            specials = self._any_turn_mark if message["role"] == "assistant" else self._any_special
            texts.append({**message, "content": specials.sub(_BROKEN, message["content"])})
        return self._render(texts, answer=answer)

    def _render(self, messages: Messages, *, answer: bool = False) -> str:
        from jinja2 import TemplateError

        try:
            return str(self._loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer))
        except (TemplateError, TypeError, KeyError) as error:
            raise ValueError(f"the chat template refuses it: {error}") from None

    @functools.cached_property
    def _any_turn_mark(self) -> re.Pattern[str]:
        """A pattern of special tokens that end a text, or that the template writes around turns before the last."""
        try:
            turns = self._render([{"role": role, "content": "a"} for role in ("user", "assistant", "user")])
        except ValueError:
            return self._any_special  # the template wants other turns
        ends = [self._added[token].content for token in (self.bos, self.eos, self.pad) if token in self._added]
        return _beginnings([special for special in self._specials if special in turns or special in ends])

    def text(self, tokens: Sequence[int]) -> str:
        """Decode tokens. Special and unknown tokens are skipped."""
        return str(self._fast.decode(list(tokens), skip_special_tokens=True))

    @functools.cached_property
    def stops(self) -> tuple[int, ...]:
        """Tokens that end an answer: `eos`, and the one that the template puts after the assistant's words."""
        answered = self.document([{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}])
        last = [token for token in answered.tokens[answered.learn].tolist()[-1:] if token in self._added]
        return tuple(dict.fromkeys([*self._eos, *last]))

    @property
    def _eos(self) -> list[int]:
        """The token `eos`, if there is one."""
        if self.eos is None:
            return []
        return [self.eos]

    def digest(self) -> str:
        """SHA-256 over the tokenizer's files, hexadecimal."""
        contents = (part for path in self._files for part in (path.name.encode(), path.read_bytes()))
        return hashlib.sha256(b"\0".join(contents)).hexdigest()

    def copy_to(self, folder: Path) -> None:
        """Copy the tokenizer's files, and the template in use, into another folder. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.folder.resolve() != folder.resolve():
            for path in self._files:
                shutil.copyfile(path, folder / path.name)
        if not self._has_template:
            (folder / "chat_template.jinja").write_text(SIMPLE_TEMPLATE, encoding="utf-8")


def _beginnings(specials: Sequence[str]) -> re.Pattern[str]:
    """A pattern of the first character of each special token. One search is fast where a thousand are not."""
    patterns = (f"{re.escape(special[0])}(?={re.escape(special[1:])})" for special in specials)
    return re.compile("|".join(patterns) or "(?!)")
