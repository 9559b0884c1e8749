"""Token files and text folders: real small ones, and damaged ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.tables import table
from tests.trainer.test_data_sources import everything, text
from trainer.config import Settings
from trainer.data import BrokenSample, Split, Text, load_data
from trainer.data.files import name_hashes
from trainer.errors import TrainerError

CONTEXT = 8


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """200 training tokens and 50 held-out ones, as nanoGPT writes them."""
    np.arange(200, dtype="<u2").tofile(tmp_path / "train.bin")
    np.arange(100, 150, dtype="<u2").tofile(tmp_path / "val.bin")
    return tmp_path


def tokens(folder: Path, **values: Any) -> Any:
    return text(data="tokens", data_dir=folder, context=CONTEXT, **values)


def stream(split: Split) -> list[int]:
    """The tokens of all windows, without the one that two windows share."""
    return [token for window in everything(split)["tokens"].tolist() for token in window[:-1]]


def test_token_files_are_cut_into_windows_that_share_one_token(corpus: Path) -> None:
    data = tokens(corpus)
    assert (len(data.train), len(data.held_out), data.vocabulary) == (24, 6, 200)
    window = data.train.read(np.array([3, 0]))["tokens"]
    assert window.dtype == torch.int64 and window.tolist() == [list(range(24, 33)), list(range(9))]
    assert stream(data.held_out) == list(range(100, 148))


def test_meta_json_says_how_wide_tokens_are_and_spares_the_search_for_the_largest(tmp_path: Path) -> None:
    for name in ("train.bin", "val.bin"):
        np.arange(70_000, 70_020, dtype="<u4").tofile(tmp_path / name)
    (tmp_path / "meta.json").write_text(json.dumps({"dtype": "uint32", "vocabulary": 128_256}))
    data = tokens(tmp_path)
    assert data.vocabulary == 128_256 and stream(data.train) == list(range(70_000, 70_016))


@table("meta", ["{", "[]", '{"dtype": "float32"}', '{"dtype": []}', '{"vocabulary": "many"}', "{\xff"])
def test_a_meta_json_that_cannot_be_understood_is_refused(corpus: Path, meta: str) -> None:
    (corpus / "meta.json").write_text(meta, encoding="latin-1")
    with pytest.raises(TrainerError, match=r"meta\.json is not \{\"dtype\": one of uint8, .* \"vocabulary\""):
        tokens(corpus)


@table(
    ("name", "content", "says"),
    [
        ("val.bin", b"abc", r"val\.bin cannot be used: its 3 bytes are no array of <u2"),
        ("train.bin", b"", r"train\.bin cannot be used: its 0 bytes"),
        ("val.bin", b"\0" * 10, r"the longest \*val\* file has 5 tokens, too few for --context 8"),
        ("train_2.npy", b"", r"train_2\.npy cannot be used"),
        ("train_2.npy", b"\x93NUMPY\x01\x00v\x00{'descr'", r"train_2\.npy cannot be used"),
    ],
)
def test_damaged_token_files_are_refused(corpus: Path, name: str, content: bytes, says: str) -> None:
    (corpus / name).write_bytes(content)
    with pytest.raises(TrainerError, match=says):
        tokens(corpus)


def test_a_token_beyond_the_vocabulary_breaks_its_window_alone(corpus: Path) -> None:
    (corpus / "meta.json").write_text('{"vocabulary": 150}')
    split = tokens(corpus).train
    assert split.read(np.array([0, 17]))["tokens"].max() == 144
    with pytest.raises(BrokenSample, match=r"sample 20 \(.*train\.bin, from token 160\) .*not 0 \.\. 149") as caught:
        split.read(np.array([0, 20, 19]))
    assert caught.value.index == 20


# --- text -------------------------------------------------------------------------------------------------------------


def folder_of(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def bytes_of(split: Split) -> bytes:
    return bytes(stream(split))


def read_text(place: Path) -> Any:
    return text(data="text", data_dir=place, context=CONTEXT)


def test_files_are_joined_by_newlines_and_one_in_25_is_held_out_whatever_lies_beside_it(tmp_path: Path) -> None:
    names = [f"{number % 3}/{number}.txt" for number in range(60)]
    content = {name: f"<{name}|{'x' * number}>".encode() for number, name in enumerate(names)}
    data = read_text(folder_of(tmp_path, content))
    hashes: npt.NDArray[np.int64] = name_hashes(name.encode() for name in names)
    out = {name for name, number in zip(names, hashes, strict=True) if number % 25 == 0}
    assert 0 < len(out) < 10 and data.vocabulary == 256
    # A rest shorter than a window falls off the end.
    for split, members in ((data.train, set(names) - out), (data.held_out, out)):
        expected = b"\n".join(content[name] for name in sorted(members, key=lambda name: tmp_path / name))
        got = bytes_of(split)
        assert expected.startswith(got) and len(expected) - len(got) <= CONTEXT

    folder_of(tmp_path, {f"more/{number}.md": b"more" for number in range(10)})
    again = bytes_of(read_text(tmp_path).held_out)
    assert all(f"<{name}|".encode() in again for name in out)


@table("as_folder", [True, False])
def test_the_last_tenth_of_a_single_file_is_held_out(tmp_path: Path, as_folder: bool) -> None:
    content = bytes(range(200)) * 2
    folder_of(tmp_path, {"novel.txt": content})
    data = read_text(tmp_path if as_folder else tmp_path / "novel.txt")
    assert bytes_of(data.train) == content[:352]  # 360 without the rest
    assert bytes_of(data.held_out) == content[360:392]


@table("change", ["gone", "shorter"])
def test_a_text_file_that_changes_during_the_run_breaks_samples(tmp_path: Path, change: str) -> None:
    split = read_text(folder_of(tmp_path, {"a": b"x" * 90, "b": b"y" * 90})).train
    path = tmp_path / "b"
    path.unlink() if change == "gone" else os.truncate(path, 5)
    assert split.read(np.array([0]))["tokens"].unique().tolist() == [ord("x")]
    says = "No such file" if change == "gone" else "shorter than the 90 bytes"
    with pytest.raises(BrokenSample, match=rf"sample 12 \({path}\) cannot be read: .*{says}"):
        split.read(np.array([0, 12]))


def vocabulary(settings: Settings) -> int:
    data = load_data(settings)
    assert isinstance(data, Text)
    return data.vocabulary
