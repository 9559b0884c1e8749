"""Token files from documents: masks, packing, slices of files, resuming after a kill, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.conftest import wait_until
from tests.tables import table
from tests.trainer.instructions import CHAT_TEMPLATE, CHATS, conversations, write_chats, write_tokenizer
from tests.trainer.running import PATIENCE_SECONDS, ROOT, is_alive
from trainer.__main__ import main
from trainer.errors import TrainerError
from trainer.preparing import PreparationPlan, documents, prepare
from trainer.preparing.packing import BEGIN, LEARN, best_fit, pack, split_document
from trainer.preparing.slices import prepare_slice
from trainer.tokenizer import Encoded, Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def rows_of(place: Path, name: str) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """The documents or pieces in the rows of token files: their tokens, and which of them are learnt."""
    meta = json.loads((place / "meta.json").read_text())
    pieces_to_learn = []
    for path in sorted(place.glob(f"{name}-*.bin")):
        tokens = np.fromfile(path, dtype=meta["dtype"])
        marks = np.fromfile(path.with_suffix(".marks"), dtype=np.uint8)
        for row, bits in zip(tokens.reshape(-1, meta["row"]), marks.reshape(-1, meta["row"]), strict=True):
            starts = np.flatnonzero(bits & BEGIN)
            assert starts[0] == 0
            pieces = zip(np.split(row, starts[1:]), np.split(bits & LEARN > 0, starts[1:]), strict=True)
            pieces_to_learn += [(piece, learn) for piece, learn in pieces if learn.any()]
    return pieces_to_learn


# --- conversations ----------------------------------------------------------------------------------------------------


def decoded(tokenizer: Tokenizer, tokens: Any) -> str:
    text: str = tokenizer._fast.decode(tokens.tolist(), skip_special_tokens=False)
    return text


def files(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir() if path.suffix in (".bin", ".marks", ".json")}


@table("template", [True, False])
def test_only_the_assistants_words_and_the_end_of_its_turn_are_learnt(tmp_path: Path, template: bool) -> None:
    tokenizer = Tokenizer(write_tokenizer(tmp_path, template=template))
    end = "<|im_end|>" if template else "<|endoftext|>"
    for row in conversations(60):
        encoded = tokenizer.document(row["messages"])
        answers = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        assert decoded(tokenizer, encoded.tokens[encoded.learn]) == "".join(answer + end for answer in answers)
        assert decoded(tokenizer, encoded.tokens) == tokenizer.rendered(row["messages"])
        # The prompt at inference equals the prompt in training.
        prompt = tokenizer.prompt(row["messages"][:-1])
        assert encoded.tokens[: len(prompt)].tolist() == prompt
        assert encoded.learn[len(prompt)]


def test_special_tokens_in_what_a_user_writes_are_text(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    question = "What is <|im_end|>\n<|im_start|>assistant?"
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": "A token."}]
    encoded = tokenizer.document(messages)
    names = [tokenizer._fast.id_to_token(token) for token in encoded.tokens]
    assert names.count("<|im_end|>") == names.count("<|im_start|>") == 2
    assert decoded(tokenizer, encoded.tokens[encoded.learn]) == "A token.<|im_end|>"
    assert question in decoded(tokenizer, encoded.tokens)


OPENING = CHAT_TEMPLATE.replace("assistant\n' }}", "assistant\n<think>\n' }}")
FRAGMENTS = (
    "<",
    "<think>",
    "\n",
    "hm",
    "</think>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_start|>assistant\n",
    " a",
    "é",
)
words = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=8).map("".join)


@pytest.fixture(scope="module")
def opening(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer with <think> among its special tokens, whose prompt for an answer opens a thought."""
    folder = write_tokenizer(tmp_path_factory.mktemp("opening"))
    (folder / "chat_template.jinja").write_text(OPENING)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = OPENING
    config["additional_special_tokens"] = ["<think>", "</think>"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer(folder)


@given(turns=st.lists(st.tuples(words, words), min_size=1, max_size=3))
def test_answers_are_learnt_without_the_thought_that_a_prompt_opens(
    opening: Tokenizer, turns: list[tuple[str, str]]
) -> None:
    assert "<think>" in opening._specials
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    encoded = opening.document(messages)
    answers = [answer.removeprefix("<think>\n") + "<|im_end|>" for _, answer in turns]
    assert decoded(opening, encoded.tokens[encoded.learn]) == "".join(answers)
    # As special tokens there are the template's own, and the thoughts that the assistant writes.
    names = [opening._fast.id_to_token(token) for token in encoded.tokens]
    assert names.count("<|im_start|>") == names.count("<|im_end|>") == len(messages)
    assert "<|endoftext|>" not in names
    assert names.count("<think>") == sum(answer.count("<think>") for _, answer in turns)


@given(text=words)
def test_special_tokens_in_plain_texts_are_text(opening: Tokenizer, text: str) -> None:
    tokens = opening.document(text).tokens
    assert tokens[0] == opening.bos
    assert tokens[-1] == opening.eos
    assert not set(tokens[1:-1].tolist()) & opening._added.keys()
    assert decoded(opening, tokens[1:-1]) == text


@table(("refused", "most", "message"), [(3, 3, ""), (4, 3, "more than 3 conv"), (40, 50, "too few to train")])
def test_conversations_that_a_template_cannot_render_are_left_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refused: int,
    most: int,
    message: str,
) -> None:
    monkeypatch.setitem(prepare_slice.__globals__, "_MOST_REFUSED", most)
    folder = write_tokenizer(tmp_path / "tokenizer")
    refusal = "{% if messages[0]['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    (folder / "chat_template.jinja").write_text(refusal + CHAT_TEMPLATE)
    plan = PreparationPlan((tmp_path / "chats.jsonl",), folder, 64, held_out=5)
    rows = [row["messages"] for row in conversations(40)]
    rows[:refused] = [[{"role": "tool", "content": "a"}, *messages] for messages in rows[:refused]]
    plan.inputs[0].write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in rows))
    first = f"chats.jsonl:1: the chat template refuses it: no tools (of tokenizer {folder})"
    part = documents.list_slices(plan.inputs)[0]
    if message.startswith("more"):
        with pytest.raises(TrainerError, match=message) as raised:
            prepare_slice(plan, tmp_path, 0, part)
        assert first in str(raised.value)
        return
    line = prepare_slice(plan, tmp_path, 0, part)
    assert first in capsys.readouterr().err
    assert (line["documents"], line["left_out"]) == (40, refused)
    if message:
        with pytest.raises(TrainerError, match=message) as raised:
            prepare(plan, tmp_path / "out", processes=1)
        assert first in str(raised.value)
        plan.inputs[0].write_text("".join(json.dumps(row) + "\n" for row in conversations(60)))
        assert prepare(plan, tmp_path / "out", processes=1).finished, "the folder is free for other inputs"


def test_answers_that_a_template_shortens_later_are_not_learnt(tmp_path: Path) -> None:
    thoughts = "{{ message['content'] if loop.last else message['content'].split('</think>')[-1] }}"
    template = "{% for message in messages %}[{{ message['role'] }}]" + thoughts + "{% endfor %}"
    (write_tokenizer(tmp_path) / "chat_template.jinja").write_text(
        template + "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    tokenizer = Tokenizer(tmp_path)
    answers = [{"role": "assistant", "content": f"<think>hm</think>{word}"} for word in ("one", "two")]
    question = {"role": "user", "content": "a"}
    encoded = tokenizer.document([question, answers[0], question, answers[1]])
    assert tokenizer.text(encoded.tokens[encoded.learn].tolist()) == answers[1]["content"]
    assert encoded.passed_over == 1
    assert not tokenizer.document([question, answers[0], question]).learn.any()
    with pytest.raises(ValueError):
        tokenizer.document([question, answers[0], answers[1]])


# --- packing ----------------------------------------------------------------------------------------------------------


@given(lengths=st.lists(st.integers(2, 17), max_size=60))
def test_every_document_is_in_one_row_and_rows_are_not_too_long(lengths: list[int]) -> None:
    rows = best_fit(lengths, 17)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    used = [sum(lengths[number] for number in row) for row in rows]
    assert all(0 < tokens <= 17 for tokens in used)
    # With best fit, no row fits into the free room of another.
    assert sum(1 for tokens in used if tokens <= 8) <= 1


@given(length=st.integers(2, 60), row=st.integers(8, 20))
def test_every_token_of_a_text_is_predicted_once(length: int, row: int) -> None:
    document = Encoded(np.arange(length, dtype=np.uint32), np.arange(length) > 0)
    tokens, marks = pack(split_document(document, row), row, pad=99)
    assert tokens.shape == marks.shape
    assert tokens.shape[1] == row
    assert sorted(tokens[(marks & LEARN) > 0].tolist()) == list(range(1, length))
    # The token before each of them is the one that comes before it in the text.
    places = np.argwhere((marks & LEARN) > 0)
    assert all(tokens[at, place] == tokens[at, place - 1] + 1 for at, place in places)


# --- documents --------------------------------------------------------------------------------------------------------


@table("size", [7, 50, 1000])
def test_slices_have_every_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(documents, "SLICE_BYTES", size)
    path = tmp_path / "rows.jsonl"
    texts = ["x" * (number % 40) for number in range(90)]
    path.write_text("\n".join(json.dumps({"text": text}) + "\n" * (len(text) % 3 == 0) for text in texts))
    parts = documents.list_slices((path,))
    assert [part.stop for part in parts[:-1]] == [part.start for part in parts[1:]]
    documents_read = [document for part in parts for document in documents.read_documents(part, "text")]
    assert [content for content, _ in documents_read] == texts
    lines = path.read_text().splitlines()
    numbers = [int(where().rpartition(":")[2]) for _, where in documents_read]
    assert [json.loads(lines[number - 1])["text"] for number in numbers] == texts


def test_all_kinds_of_files_become_rows_with_their_masks(tmp_path: Path, folder: Path) -> None:
    place = tmp_path / "in"
    out = tmp_path / "out"
    place.mkdir()
    texts = [f"Text number {number}. " + "Words upon words. " * (number % 7) for number in range(30)]
    (place / "one.md").write_text(texts[0])
    (place / "lines.jsonl").write_text("".join(json.dumps({"text": text, "id": 1}) + "\n" for text in texts[1:16]))
    parquet.write_table(pa.table({"text": texts[16:], "id": list(range(14))}), place / "rows.parquet", row_group_size=4)
    chats = [row["messages"] for row in conversations(40)]
    write_chats(place / "chats.jsonl", 20)
    parquet.write_table(pa.table({"messages": chats[20:]}), place / "chats.parquet", row_group_size=7)

    done = prepare(PreparationPlan((place,), folder, context=96, held_out=5), out, processes=2)
    assert done.finished
    assert done.documents == 70
    tokenizer = Tokenizer(folder)
    pieces = [piece for content in (*texts, *chats) for piece in split_document(tokenizer.document(content), 97)]
    expected = [(piece.tokens, piece.learn & (np.arange(len(piece.learn)) > 0)) for piece in pieces]
    train = rows_of(out, "train")
    held_out = rows_of(out, "val")

    def count(pieces: list[tuple[Any, Any]]) -> Counter[tuple[Any, ...]]:
        return Counter((*tokens.tolist(), *learn.tolist()) for tokens, learn in pieces)

    assert train
    assert held_out
    assert count(train + held_out) == count(expected)
    # The same document is never on both sides.
    assert not count(train).keys() & count(held_out).keys()
    meta = json.loads((out / "meta.json").read_text())
    assert meta["learnt"] == sum(int(learn.sum()) for _, learn in expected)
    assert meta["tokens"] == sum(len(tokens) for tokens, _ in expected) == done.tokens
    assert (out / "tokenizer" / "tokenizer.json").is_file()


def test_a_conversation_that_is_too_long_loses_its_end_and_is_counted(tmp_path: Path, folder: Path) -> None:
    write_chats(tmp_path / "chats.jsonl", 60)
    prepare(PreparationPlan((tmp_path,), folder, context=24, held_out=5), tmp_path / "out")
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    lengths = [len(Tokenizer(folder).document(row["messages"]).tokens) for row in conversations(60)]
    assert meta["shortened"] == sum(length > 25 for length in lengths) > 0
    assert meta["documents"] == 60 > meta["left_out"]
    assert all(tokens[0] == 1 for tokens, _ in rows_of(tmp_path / "out", "train"))
    assert all(0 < len(prompt) < 24 for prompt in meta["prompts"]), "each leaves room for an answer"


# --- after a kill -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_after_a_kill_it_goes_on_and_the_files_are_the_same(tmp_path: Path, folder: Path) -> None:
    inputs = tmp_path / "in"
    out = tmp_path / "out"
    inputs.mkdir()
    for number in range(60):
        write_chats(inputs / f"{number:02d}.jsonl", 30 + number)
    plan = PreparationPlan((inputs,), folder, context=96)
    arguments = f"-m trainer prepare {inputs} --tokenizer {folder} --out {out} --context 96 --processes 2"
    process = subprocess.Popen([sys.executable, *arguments.split()], cwd=ROOT, start_new_session=True)
    journal = out / "journal.jsonl"
    try:
        wait_until(lambda: journal.is_file() and journal.read_text().count("\n") > 4, PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not is_alive(process.pid), PATIENCE_SECONDS, "the end of its own processes with it")
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.bin")}
    listed = [json.loads(line)["slice"] for line in journal.read_text().splitlines()[1:] if line.endswith("}")]
    assert 4 <= len(listed) < 60
    assert not (out / "meta.json").exists()
    assert prepare(plan, out).finished
    slices = [out / f"train-{number:05d}.bin" for number in listed]
    assert all(path.stat().st_mtime_ns == before[path] for path in slices), "a finished slice was done again"
    prepare(plan, tmp_path / "straight", processes=1)
    assert files(out) == files(tmp_path / "straight")


# --- what is refused --------------------------------------------------------------------------------------------------


@table(
    "content, name, says",
    [
        (b'{"text": "a"}\n{"text": \n', "a.jsonl", "a.jsonl:2: this is not JSON"),
        (b'{"text": "a"}\n[1]\n', "a.jsonl", "a.jsonl:2: neither messages nor a text in text, but list"),
        (b'{"words": "a"}\n', "a.jsonl", "a.jsonl:1: neither messages nor a text in text, but words"),
        (b'\n{"messages": []}\n', "a.jsonl", "a.jsonl:2: messages is not a list"),
        (b'{"messages": [{"role": "user"}]}\n', "a.jsonl", "a.jsonl:1: messages is not a list of messages"),
        (b"\xff\xfe\x00", "a.txt", "a.txt: this is not UTF-8"),
        (b"PAR1", "a.parquet", "a.parquet is damaged or no Parquet file"),
    ],
)
def test_what_cannot_be_used_is_named_in_one_line(content: bytes, name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TrainerError) as raised:
        for part in documents.list_slices((tmp_path / name,)):
            list(documents.read_documents(part, "text"))
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_too_few_documents_are_refused(tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("words")
    arguments = ["prepare", str(tmp_path / "a.txt"), "--tokenizer", str(folder), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--context", "32"]) == 1
    (line,) = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("prepare:")]
    assert line.startswith("trainer: ")
    assert "documents are too few" in line
    assert not (tmp_path / "out" / "meta.json").exists()


def test_a_folder_without_a_finished_slice_takes_other_inputs(
    tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "chats.jsonl"
    rows = [json.dumps(row) for row in conversations(60)]
    source.write_text("\n".join([*rows, "{"]))
    out = tmp_path / "out"
    arguments = ["prepare", str(source), "--tokenizer", str(folder), "--out", str(out), "--context", "64"]
    assert main(arguments) == 1
    assert "chats.jsonl:61: this is not JSON" in capfd.readouterr().err
    (out / "train-00007.bin").write_bytes(b"of a slice that was not finished")
    source.write_text("\n".join(rows))
    assert main(arguments) == 0
    assert sorted(files(out)) == [
        *("meta.json", "train-00000.bin", "train-00000.marks", "val-00000.bin", "val-00000.marks")
    ]


def test_a_folder_with_other_tokens_is_left_alone(
    tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["prepare", str(CHATS), "--out", str(tmp_path), "--tokenizer"]
    assert main([*arguments, str(folder), "--context", "64"]) == 0
    before = files(tmp_path)
    assert main([*arguments, str(folder), "--context", "64"]) == 0
    assert main([*arguments, str(folder), "--context", "65"]) == 2
    assert files(tmp_path) == before
    assert "name another folder" in capfd.readouterr().err
    assert main([*arguments, str(tmp_path / "in"), "--context", "64"]) == 1
    assert main(["prepare", "--contxt", "64"]) == 2
