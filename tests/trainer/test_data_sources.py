"""Data that is always there: digits, the standard library's text, synthetic samples; and what all sources promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import table
from trainer.config import Settings
from trainer.data import Images, Split, Text, load_data
from trainer.data.files import Concatenation
from trainer.data.text import window_count
from trainer.errors import SettingsError, TrainerError


def images(**values: Any) -> Images:
    data = load_data(Settings(**values))
    assert isinstance(data, Images)
    return data


def text(**values: Any) -> Text:
    data = load_data(Settings(**{"task": "lm", **values}))
    assert isinstance(data, Text)
    return data


def everything(split: Split) -> dict[str, torch.Tensor]:
    return split.read(np.arange(len(split)))


def stream(split: Split) -> list[int]:
    """The tokens of all windows, without the one that two windows share."""
    return [token for window in everything(split)["tokens"].tolist() for token in window[:-1]]


def test_digits_are_the_real_ones_and_every_fifth_stays_out() -> None:
    from sklearn.datasets import load_digits

    data, known = images(), load_digits()
    assert (len(data.train), len(data.held_out), data.shape, len(data.classes)) == (1437, 360, (1, 8, 8), 10)
    held_out = everything(data.held_out)
    assert held_out["image"].dtype == torch.uint8
    assert torch.equal((held_out["image"][:, 0].double() * 16 / 255).round(), torch.from_numpy(known.images[::5]))
    assert held_out["label"].tolist() == known.target[::5].tolist()
    assert everything(data.train)["label"].tolist() == np.delete(known.target, np.s_[::5]).tolist()


def test_synthetic_images_can_be_told_apart_and_are_the_same_every_time() -> None:
    data = images(data="synthetic", synthetic_samples=600, image_size=16)
    assert (len(data.train), len(data.held_out), data.shape, len(data.classes)) == (600, 60, (3, 16, 16), 10)
    train, held_out = everything(data.train), everything(data.held_out)
    assert torch.equal(data.train.read(np.array([7]))["image"][0], train["image"][7])
    assert len(train["image"].flatten(1).unique(dim=0)) == 600
    means = torch.stack([train["image"][train["label"] == number].float().mean(0) for number in range(10)])
    nearest = torch.cdist(held_out["image"].float().flatten(1), means.flatten(1)).argmin(1)
    assert (nearest == held_out["label"]).float().mean() > 0.95


def test_the_standard_library_is_cut_into_windows_that_share_one_byte_and_holds_files_out() -> None:
    data = text(context=64)
    assert data.vocabulary == 256 and len(data.train) > 10 * len(data.held_out) > 1000
    tokens = data.train.read(np.arange(200))["tokens"]
    assert tokens[1:, 0].tolist() == tokens[:-1, -1].tolist()
    train, held_out = (bytes(everything(split)["tokens"][:, :-1].flatten()) for split in (data.train, data.held_out))
    assert b"import " in train and held_out[:6400] not in train


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
    asked = data.draw(st.lists(st.integers(0, len(everyone) - 1), min_size=1))
    groups = list(parts.group(np.array(asked)))
    found = {row: (part, offset) for part, rows, offsets in groups for row, offset in zip(rows, offsets, strict=True)}
    assert [found[row] for row in range(len(asked))] == [everyone[index] for index in asked]
    assert [part for part, _, _ in groups] == list(dict.fromkeys(everyone[index][0] for index in asked))
    assert [parts.locate(index) for index in asked] == [everyone[index] for index in asked]


@given(st.integers(0, 200), st.integers(1, 20))
def test_windows_use_all_tokens_but_a_rest_that_is_shorter_than_one(tokens: int, context: int) -> None:
    windows = window_count(tokens, context)
    assert (windows + 1) * context + 1 > tokens and (not windows or 0 < windows * context + 1 <= tokens)
