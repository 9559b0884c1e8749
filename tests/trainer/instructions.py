"""A small instruction set in the form of no_robots (prompt, prompt_id, messages, category), and a tokenizer for it.

The 240 conversations are made up: sums, colours of things, sounds of animals and counting.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trainer.tasks.language import LanguageObjective

CHATS = Path(__file__).parent / "data" / "instructions.jsonl"
CONTEXT = 64  # of the tokens that tests prepare from them

# The chat template of SmolLM's instruct models.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def conversations(count: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in CHATS.read_text().splitlines()[:count]]


def write_chats(path: Path, count: int) -> None:
    path.write_text("".join(CHATS.read_text().splitlines(keepends=True)[:count]))


def write_tokenizer(folder: Path, *, template: bool = True) -> Path:
    """A byte-level BPE tokenizer of 384 tokens trained on the conversations, as a folder of Hugging Face's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=384, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    texts = (message["content"] for row in conversations(240) for message in row["messages"])
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": special[0], "eos_token": special[0]}
    config |= {"chat_template": CHAT_TEMPLATE} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def documents(raw: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Each document alone: its tokens and which of them are learnt."""
    pieces = []
    for row, learn, begin in zip(raw["tokens"], raw["learn"], raw["begin"], strict=True):
        cuts = [*begin.nonzero().flatten().tolist(), len(row)]
        assert cuts[0] == 0
        pieces += [(row[a:b], learn[a:b]) for a, b in itertools.pairwise(cuts) if b - a > 1]
    return pieces


def alone(task: LanguageObjective, raw: dict[str, Tensor]) -> tuple[Tensor, int]:
    """The summed loss of the tokens that are learnt, from each document without any other; and their number."""
    total = torch.zeros(())
    count = 0
    for tokens, learn in documents(raw):
        logits = task.model(tokens[None, :-1])[0]
        total = total + functional.cross_entropy(logits[learn[1:]], tokens[1:][learn[1:]], reduction="sum")
        count += int(learn[1:].sum())
    return total, count
