"""CIFAR-10's records and folders of images: real small ones, and damaged ones."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.tables import table
from tests.trainer.sources import encoded, everything, images
from trainer.data import BrokenSample
from trainer.data.files import name_hashes
from trainer.data.images import UndecodableError, decode
from trainer.errors import TrainerError

NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
COLOURS = {"red": (250, 0, 0), "green": (0, 250, 0), "blue": (0, 0, 250)}


def record(label: int, *colour: int) -> bytes:
    return bytes([label]) + b"".join(bytes([value]) * 1024 for value in colour)


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Three records in each training batch and two in the test batch; record k is k red, all are 7 green and 9 blue."""
    for batch in range(5):
        records = [record(number % 10, number, 7, 9) for number in range(3 * batch, 3 * batch + 3)]
        (tmp_path / f"data_batch_{batch + 1}.bin").write_bytes(b"".join(records))
    (tmp_path / "test_batch.bin").write_bytes(record(3, 100, 7, 9) + record(14, 101, 7, 9))
    (tmp_path / "batches.meta.txt").write_text(NAMES.replace(" ", "\n") + "\n\n")
    return tmp_path


def save(path: Path, colour: Any = (250, 0, 0), kind: str = "PNG") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(Image.new("RGB", (8, 8), colour), kind))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Three classes; two images to train on and one held out in each."""
    for name, colour in COLOURS.items():
        save(tmp_path / "train" / name / "1.png", colour)
        save(tmp_path / "train" / name / "more" / "2.BMP", colour, "BMP")
        save(tmp_path / "val" / name / "3.webp", colour, "WEBP")
    (tmp_path / "train" / "red" / "notes.txt").write_bytes(b"no image")
    (tmp_path / "train" / "red" / "._1.png").write_bytes(b"what another system left")
    save(tmp_path / "train" / ".cache" / "x.png")
    return tmp_path


def folder(root: Path) -> Any:
    return images(data="images", data_dir=root)


def test_cifar10_has_red_green_and_blue_planes_after_each_label(cifar: Path) -> None:
    data = images(data="cifar10", data_dir=cifar)
    assert (len(data.train), len(data.held_out), data.shape) == (15, 2, (3, 32, 32))
    assert data.classes == tuple(NAMES.split())
    batch = data.train.read(np.array([14, 0, 6, 14]))
    assert batch["image"].dtype == torch.uint8
    assert batch["image"].shape == (4, 3, 32, 32)
    assert batch["image"].amin((2, 3)).tolist() == batch["image"].amax((2, 3)).tolist()
    assert batch["image"][:, :, 0, 0].tolist() == [[14, 7, 9], [0, 7, 9], [6, 7, 9], [14, 7, 9]]
    assert batch["label"].dtype == torch.int64
    assert batch["label"].tolist() == [4, 0, 6, 4]
    with pytest.raises(BrokenSample, match=r"sample 1 \(.*test_batch.bin, record 1\) .*: its class is 14"):
        data.held_out.read(np.array([0, 1]))


@table("size", [0, 3072])
def test_batches_of_cifar10_that_are_cut_off_are_refused(cifar: Path, size: int) -> None:
    os.truncate(cifar / "data_batch_2.bin", size)
    with pytest.raises(TrainerError, match=rf"data_batch_2.bin is missing or cut off: it holds {size} bytes"):
        images(data="cifar10", data_dir=cifar)


# --- folders of images ------------------------------------------------------------------------------------------------


def test_folders_are_classes_in_the_order_of_their_names(pictures: Path) -> None:
    data = folder(pictures)
    assert data.classes == ("blue", "green", "red")
    assert data.shape == (3, 8, 8)
    train = everything(data.train)
    held_out = everything(data.held_out)
    assert train["image"].dtype == torch.uint8
    assert train["label"].tolist() == [0, 0, 1, 1, 2, 2]
    assert train["image"][:, :, 4, 4].tolist() == [[0, 0, 250]] * 2 + [[0, 250, 0]] * 2 + [[250, 0, 0]] * 2
    assert held_out["label"].tolist() == [0, 1, 2]
    assert held_out["image"].float().mean((2, 3)).argmax(1).tolist() == [2, 1, 0]
    again = pickle.loads(pickle.dumps(data.train)).read(np.array([4, 1]))
    assert again["label"].tolist() == [2, 0]
    assert torch.equal(again["image"], train["image"][[4, 1]])


def test_without_a_held_out_folder_one_in_ten_is_held_out_by_its_path(tmp_path: Path) -> None:
    names = [f"train/{kind}/{number}.png" for kind in "ab" for number in range(60)]
    for number, name in enumerate(names):
        save(tmp_path / name, (number, 0, 0))
    data = folder(tmp_path)
    out = np.flatnonzero(name_hashes(name.encode() for name in names) % 10 == 0).tolist()
    held_out = everything(data.held_out)
    train = everything(data.train)
    assert 5 < len(out) < 25
    assert sorted(held_out["image"][:, 0, 0, 0].tolist()) == out
    assert sorted(train["image"][:, 0, 0, 0].tolist()) == sorted(set(range(120)) - set(out))
    assert torch.equal(held_out["label"], (held_out["image"][:, 0, 0, 0] >= 60).long())


@table(
    ("file", "says"),
    [
        ("cat/1.png", "has no folder train with a folder of images for each class"),
        ("train/a/1.png", "has 0 images to train on and 1 to validate on"),
    ],
)
def test_other_layouts_are_refused_in_words(tmp_path: Path, file: str, says: str) -> None:
    save(tmp_path / file)
    with pytest.raises(TrainerError, match=says):
        folder(tmp_path)


@table("damage", ["empty", "cut", "text", "gone"])
def test_a_broken_image_breaks_its_sample_alone_and_is_named(pictures: Path, damage: str) -> None:
    path = pictures / "train" / "blue" / "1.png"  # the very first
    content = path.read_bytes()
    if damage != "gone":
        path.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "text": b"no image"}[damage])
    split = folder(pictures).train
    if damage == "gone":
        path.unlink()
    assert split.read(np.array([1, 2]))["label"].tolist() == [0, 1]
    with pytest.raises(BrokenSample, match=rf"sample 0 \({path}\) cannot be read: ") as caught:
        split.read(np.array([3, 0]))
    assert "\n" not in str(caught.value)


# --- decoding ---------------------------------------------------------------------------------------------------------


@table(("width", "height"), [(100, 50), (50, 100), (999, 500)])
@table("kind", ["PNG", "JPEG"])
def test_the_middle_is_kept_whatever_the_shape(width: int, height: int, kind: str) -> None:
    red = np.tile(np.linspace(0, 255, width), (height, 1))
    green = np.tile(np.linspace(0, 255, height)[:, None], (1, width))
    gradient = Image.fromarray(np.stack([red, green, np.zeros_like(red)], -1).astype(np.uint8))
    pixels = decode(encoded(gradient, kind), 16).float()
    assert pixels.shape == (3, 16, 16)
    side = min(width, height)
    for channel, length in ((0, width), (1, height)):
        first = 255 * (length - side) / 2 / length
        last = 255 * (length + side) / 2 / length
        expected = torch.linspace(first, last, 33)[1::2]
        assert (pixels[channel].mean(channel) - expected).abs().max() < 6


@table(
    ("mode", "colour", "expected"),
    [
        ("L", 77, [77, 77, 77]),
        ("1", 1, [255, 255, 255]),
        ("LA", (77, 0), [77, 77, 77]),
        ("RGBA", (1, 2, 3, 0), [1, 2, 3]),
        ("I;16", 77 * 256 + 13, [77, 77, 77]),
        ("P", 0, [0, 0, 0]),
    ],
)
def test_every_kind_of_png_becomes_rgb(mode: str, colour: Any, expected: list[int]) -> None:
    pixels = decode(encoded(Image.new(mode, (8, 8), colour)), 0)
    assert pixels.shape == (3, 8, 8)
    assert pixels[:, 3, 3].tolist() == expected


def test_pixels_are_counted_before_they_are_decoded() -> None:
    with pytest.raises(UndecodableError, match=r"8200 x 8200 pixels are more than the 67,108,864"):
        decode(encoded(Image.new("1", (8200, 8200))), 32)
