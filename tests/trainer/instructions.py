"""A small instruction set in the form of no_robots (prompt, prompt_id, messages, category), and a tokenizer for it.

``python -m tests.trainer.instructions FOLDER`` writes both: `chats.jsonl`, also kept beside the tests, and `tokenizer`.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHATS = Path(__file__).parent / "data" / "instructions.jsonl"
CONTEXT = 64  # of the tokens that tests prepare from them

# As SmolLM's instruct models have it.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_COLOURS = ("red", "blue", "green", "black", "white", "brown")
_THINGS = ("kettle", "bicycle", "lantern", "violin", "ladder", "umbrella", "teapot", "compass")
_SOUNDS = {"cat": "meows", "dog": "barks", "owl": "hoots", "cow": "moos", "duck": "quacks", "horse": "neighs"}


def conversations(count: int = 240) -> Iterator[dict[str, Any]]:
    """The same ones every time."""
    draw = random.Random(16)
    for _ in range(count):
        category, messages = draw.choice((_sum, _colour, _sound, _count))(draw)
        prompt = messages[-2]["content"]
        digest = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
        yield {"prompt": prompt, "prompt_id": digest, "messages": messages, "category": category}


def _turn(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _sum(draw: random.Random) -> tuple[str, list[dict[str, str]]]:
    one, other = draw.randrange(10), draw.randrange(10)
    return "Closed QA", _turn(f"What is {one} plus {other}?", f"{one} plus {other} is {one + other}.")


def _colour(draw: random.Random) -> tuple[str, list[dict[str, str]]]:
    thing, colour = draw.choice(_THINGS), draw.choice(_COLOURS)
    question = f"My {thing} is {colour}. What colour is my {thing}?"
    return "Extract", _turn(question, f"Your {thing} is {colour}.")


def _sound(draw: random.Random) -> tuple[str, list[dict[str, str]]]:
    system = [{"role": "system", "content": "Answer in one sentence."}] if draw.random() < 0.3 else []
    animal = draw.choice(sorted(_SOUNDS))
    return "Open QA", system + _turn(f"What does a {animal} do?", f"A {animal} {_SOUNDS[animal]}.")


def _count(draw: random.Random) -> tuple[str, list[dict[str, str]]]:
    start = draw.randrange(5)
    first = ", ".join(str(start + step) for step in range(4))
    then = ", ".join(str(start + step) for step in range(4, 8))
    return "Chat", _turn(f"Count from {start}.", f"{first}.") + _turn("Go on.", f"{then}.")


def write_tokenizer(folder: Path, vocabulary: int = 384, *, template: bool = True) -> Path:
    """A byte-level BPE tokenizer trained on the conversations, as a folder of Hugging Face's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (message["content"] for row in conversations() for message in row["messages"])
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
    }
    if template:
        config["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    return folder


def write_chats(path: Path, count: int = 240) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in conversations(count)))
    return path


if __name__ == "__main__":
    place = Path(sys.argv[1])
    write_tokenizer(place / "tokenizer")
    write_chats(place / "chats.jsonl")
