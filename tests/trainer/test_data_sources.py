"""Data that is always there, token files and text, real small ones and damaged ones; and what all sources promise."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import table
from tests.trainer.sources import everything, images, stream, text
from trainer.config import Settings
from trainer.data import BrokenSample, load_data
from trainer.data.files import Concatenation, name_hashes
from trainer.errors import SettingsError, TrainerError

CONTEXT = 8


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """200 training tokens and 50 held-out ones, as nanoGPT writes them."""
    np.arange(200, dtype="<u2").tofile(tmp_path / "train.bin")
    np.arange(100, 150, dtype="<u2").tofile(tmp_path / "val.bin")
    return tmp_path


def tokens(folder: Path) -> Any:
    return text(data="tokens", data_dir=folder, context=CONTEXT)


def read_text(place: Path, files: dict[str, bytes]) -> Any:
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return text(data="text", data_dir=place, context=CONTEXT)


def test_digits_are_the_real_ones_and_every_fifth_stays_out() -> None:
    from sklearn.datasets import load_digits

    data = images()
    digits = load_digits()
    assert (len(data.train), len(data.held_out), data.shape, len(data.classes)) == (1437, 360, (1, 8, 8), 10)
    held_out = everything(data.held_out)
    assert held_out["image"].dtype == torch.uint8
    assert torch.equal((held_out["image"][:, 0].double() * 16 / 255).round(), torch.from_numpy(digits.images[::5]))
    assert held_out["label"].tolist() == digits.target[::5].tolist()
    assert everything(data.train)["label"].tolist() == np.delete(digits.target, np.s_[::5]).tolist()


def test_synthetic_images_can_be_told_apart_and_are_the_same_every_time() -> None:
    data = images(data="synthetic", synthetic_samples=600, image_size=16)
    assert (len(data.train), len(data.held_out), data.shape, len(data.classes)) == (600, 60, (3, 16, 16), 10)
    train = everything(data.train)
    held_out = everything(data.held_out)
    assert torch.equal(data.train.read(np.array([7]))["image"][0], train["image"][7])
    assert len(train["image"].flatten(1).unique(dim=0)) == 600
    means = torch.stack([train["image"][train["label"] == number].float().mean(0) for number in range(10)])
    nearest = torch.cdist(held_out["image"].float().flatten(1), means.flatten(1)).argmin(1)
    assert (nearest == held_out["label"]).float().mean() > 0.95


def test_the_standard_library_is_cut_into_windows_that_share_one_byte_and_holds_files_out() -> None:
    data = text(context=64)
    assert data.vocabulary == 256
    assert len(data.train) > 10 * len(data.held_out) > 1000
    tokens = data.train.read(np.arange(200))["tokens"]
    assert tokens[1:, 0].tolist() == tokens[:-1, -1].tolist()
    train, held_out = (bytes(everything(split)["tokens"][:, :-1].flatten()) for split in (data.train, data.held_out))
    assert b"import " in train
    assert held_out[:6400] not in train


@table("source", ["cifar10", "images", "parquet", "tokens", "text"])
def test_sources_on_disk_say_what_they_look_for(source: str, tmp_path: Path) -> None:
    task = "lm" if source in ("tokens", "text") else "classify"
    with pytest.raises(SettingsError, match=f"--data {source} needs --data-dir, a folder with"):
        load_data(Settings(task=task, data=source))
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, says in (("nowhere", "does not exist"), ("file", "not a folder|0 bytes"), ("empty", "empty")):
        with pytest.raises(TrainerError, match=says) as caught:
            load_data(Settings(task=task, data=source, data_dir=tmp_path / name))
        assert "\n" not in str(caught.value)


@given(st.lists(st.integers(0, 5), max_size=8).filter(any), st.data())
def test_parts_number_samples_through(lengths: list[int], data: st.DataObject) -> None:
    parts = Concatenation(lengths)
    everyone = [(part, offset) for part, length in enumerate(lengths) for offset in range(length)]
    indices = data.draw(st.lists(st.integers(0, len(everyone) - 1), min_size=1))
    groups = list(parts.group(np.array(indices)))
    places = {row: (part, offset) for part, rows, offsets in groups for row, offset in zip(rows, offsets, strict=True)}
    assert [places[row] for row in range(len(indices))] == [everyone[index] for index in indices]
    assert [part for part, _, _ in groups] == list(dict.fromkeys(everyone[index][0] for index in indices))
    assert [parts.locate(index) for index in indices] == [everyone[index] for index in indices]


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_token_files_are_cut_into_windows_that_share_one_token(corpus: Path) -> None:
    data = tokens(corpus)
    assert (len(data.train), len(data.held_out), data.vocabulary) == (24, 6, 200)
    window = data.train.read(np.array([3, 0]))["tokens"]
    assert window.dtype == torch.int64
    assert window.tolist() == [list(range(24, 33)), list(range(9))]
    assert stream(data.held_out) == list(range(100, 148))


def test_meta_json_says_how_wide_tokens_are_and_spares_the_search_for_the_largest(tmp_path: Path) -> None:
    for name in ("train.bin", "val.bin"):
        np.arange(70_000, 70_020, dtype="<u4").tofile(tmp_path / name)
    (tmp_path / "meta.json").write_text(json.dumps({"dtype": "uint32", "vocabulary": 128_256}))
    data = tokens(tmp_path)
    assert data.vocabulary == 128_256
    assert stream(data.train) == list(range(70_000, 70_016))


@table(
    ("name", "content", "says"),
    [
        ("meta.json", b'{"dtype": "float32"}', r"meta\.json does not describe tokens: .*'uint8', "),
        ("val.bin", b"abc", r"val\.bin cannot be used as a row of uint16: "),
        ("val.bin", b"\0" * 10, r"the longest \*val\* file has 5 tokens, too few for --context 8"),
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


def test_files_are_joined_by_newlines_and_one_in_25_is_held_out_whatever_lies_beside_it(tmp_path: Path) -> None:
    content = {f"{number % 3}/{number}.txt": f"<{number}|{'x' * (9 + number)}>".encode() for number in range(60)}
    data = read_text(tmp_path, content)
    hashes = name_hashes(name.encode() for name in content)
    out = {name for name, number in zip(content, hashes, strict=True) if number % 25 == 0}
    assert 0 < len(out) < 10
    assert data.vocabulary == 256
    # A rest shorter than a window falls off the end.
    for split, members in ((data.train, content.keys() - out), (data.held_out, out)):
        expected = b"\n".join(content[name] for name in sorted(members, key=lambda name: tmp_path / name))
        got = bytes(stream(split))
        assert expected.startswith(got)
        assert len(expected) - len(got) <= CONTEXT
    again = bytes(stream(read_text(tmp_path, {f"more/{number}.md": b"more" for number in range(10)}).held_out))
    assert all(content[name][:4] in again for name in out)


@table("as_folder", [True, False])
def test_the_last_tenth_of_a_single_file_is_held_out(tmp_path: Path, as_folder: bool) -> None:
    content = bytes(range(200)) * 2
    (tmp_path / "novel.txt").write_bytes(content)
    place = tmp_path if as_folder else tmp_path / "novel.txt"
    data = read_text(place, {})
    assert bytes(stream(data.train)) == content[:352]  # 360 without the rest
    assert bytes(stream(data.held_out)) == content[360:392]


@table("change", ["No such file", "shorter than the 90 bytes"])
def test_a_text_file_that_changes_during_the_run_breaks_samples(tmp_path: Path, change: str) -> None:
    split = read_text(tmp_path, {"a": b"x" * 90, "b": b"y" * 90}).train
    path = tmp_path / "b"
    path.unlink() if change == "No such file" else os.truncate(path, 5)
    assert split.read(np.array([0]))["tokens"].unique().tolist() == [ord("x")]
    with pytest.raises(BrokenSample, match=rf"sample 12 \({path}\) cannot be read: .*{change}"):
        split.read(np.array([0, 12]))
