"""CIFAR-10's records and folders of images: real small ones, and damaged ones."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from tests.trainer.test_data_sources import everything, images
from trainer.data import BrokenSample
from trainer.data.paths import name_hashes
from trainer.data.pixels import UndecodableError, decode
from trainer.errors import TrainerError

NAMES = "airplane automobile bird cat deer dog frog horse ship truck"


def record(label: int, red: int, green: int, blue: int) -> bytes:
    return bytes([label]) + b"".join(bytes([value]) * 1024 for value in (red, green, blue))


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Three records in each training batch and two in the test batch; record k is k red, all are 7 green and 9 blue."""
    for batch in range(5):
        records = [record(number % 10, number, 7, 9) for number in range(3 * batch, 3 * batch + 3)]
        (tmp_path / f"data_batch_{batch + 1}.bin").write_bytes(b"".join(records))
    (tmp_path / "test_batch.bin").write_bytes(record(3, 100, 7, 9) + record(4, 101, 7, 9))
    (tmp_path / "batches.meta.txt").write_text(NAMES.replace(" ", "\n") + "\n\n")
    return tmp_path


def cifar10(folder: Path, **values: Any) -> Any:
    return images(data="cifar10", data_dir=folder, **values)


def test_cifar10_has_red_green_and_blue_planes_after_each_label(cifar: Path) -> None:
    data = cifar10(cifar)
    assert (len(data.train), len(data.held_out), data.shape) == (15, 2, (3, 32, 32))
    assert data.classes == tuple(NAMES.split())
    batch = data.train.read(np.array([14, 0, 6, 14]))
    assert batch["image"].dtype == torch.uint8 and batch["image"].shape == (4, 3, 32, 32)
    assert batch["image"].amin((2, 3)).tolist() == batch["image"].amax((2, 3)).tolist()
    assert batch["image"][:, :, 0, 0].tolist() == [[14, 7, 9], [0, 7, 9], [6, 7, 9], [14, 7, 9]]
    assert batch["label"].dtype == torch.int64 and batch["label"].tolist() == [4, 0, 6, 4]
    assert everything(data.held_out)["label"].tolist() == [3, 4]


def test_rows_of_cifar10_go_from_left_to_right(cifar: Path) -> None:
    pixels = np.zeros((3, 32, 32), dtype=np.uint8)
    pixels[1, 2, 5] = 200
    (cifar / "test_batch.bin").write_bytes(b"\x00" + pixels.tobytes())
    image = cifar10(cifar).held_out.read(np.array([0]))["image"][0]
    assert torch.equal(image, torch.from_numpy(pixels))


def test_cifar10_is_found_in_the_folder_of_its_archive_and_does_without_names(cifar: Path) -> None:
    inner = cifar / "cifar-10-batches-bin"
    inner.mkdir()
    for path in cifar.glob("*.bin"):
        path.rename(inner / path.name)
    data = cifar10(cifar, image_size=48)
    assert data.classes == tuple("0123456789") and data.shape == (3, 48, 48)
    assert data.train.read(np.array([5]))["image"].flatten(2).unique(dim=2).tolist() == [[[5], [7], [9]]]


def test_missing_batches_of_cifar10_are_named(cifar: Path) -> None:
    (cifar / "data_batch_3.bin").unlink()
    with pytest.raises(TrainerError, match=rf"{cifar}/data_batch_3.bin is missing; unpack CIFAR-10's binary version"):
        cifar10(cifar)


@pytest.mark.parametrize("size", [0, 1, 3072, 3074, 3 * 3073 - 1])
def test_batches_of_cifar10_that_are_cut_off_are_refused(cifar: Path, size: int) -> None:
    os.truncate(cifar / "data_batch_2.bin", size)
    with pytest.raises(TrainerError, match=rf"data_batch_2.bin holds {size} bytes, not whole records of 3073"):
        cifar10(cifar)


def test_names_of_another_data_set_are_refused(cifar: Path) -> None:
    (cifar / "batches.meta.txt").write_text("apple\nbear\n")
    with pytest.raises(TrainerError, match=r"batches\.meta\.txt names 2 classes, not 10"):
        cifar10(cifar)


def test_a_class_beyond_nine_breaks_its_record_alone(cifar: Path) -> None:
    content = bytearray((cifar / "data_batch_2.bin").read_bytes())
    content[3073] = 10
    (cifar / "data_batch_2.bin").write_bytes(content)
    split = cifar10(cifar).train
    assert split.read(np.array([3, 5]))["label"].tolist() == [3, 5]
    with pytest.raises(BrokenSample, match=r"sample 4 \(.*data_batch_2\.bin, record 1\) .* its class is 10") as caught:
        split.read(np.array([0, 3, 4, 5]))
    assert caught.value.index == 4


def test_a_batch_that_another_process_finds_changed_breaks_samples(cifar: Path) -> None:
    sent = pickle.dumps(cifar10(cifar).train)
    assert len(sent) < 3000, "the records themselves do not travel"
    assert torch.equal(pickle.loads(sent).read(np.array([4]))["label"], torch.tensor([4]))
    os.truncate(cifar / "data_batch_2.bin", 3073)
    with pytest.raises(BrokenSample, match="holds 3073 values and held 9219 at first"):
        pickle.loads(sent).read(np.array([0, 4]))


# --- folders of images ------------------------------------------------------------------------------------------------

COLOURS = {"red": (250, 0, 0), "green": (0, 250, 0), "blue": (0, 0, 250)}


def encoded(kind: str = "PNG", size: tuple[int, int] = (8, 8), colour: Any = (250, 0, 0), mode: str = "RGB") -> bytes:
    content = io.BytesIO()
    Image.new(mode, size, colour).save(content, kind)
    return content.getvalue()


def save(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Three classes; two images to train on and one held out in each."""
    for name, colour in COLOURS.items():
        save(tmp_path / "train" / name / "1.png", encoded(colour=colour))
        save(tmp_path / "train" / name / "more" / "2.BMP", encoded("BMP", colour=colour))
        save(tmp_path / "val" / name / "3.webp", encoded("WEBP", colour=colour))
    save(tmp_path / "train" / "red" / "notes.txt", b"no image")
    save(tmp_path / "train" / "red" / "._1.png", b"what another system left")
    save(tmp_path / "train" / ".cache" / "x.png", b"hidden")
    return tmp_path


def folder(root: Path, **values: Any) -> Any:
    return images(data="images", data_dir=root, **values)


def test_folders_are_classes_in_the_order_of_their_names(pictures: Path) -> None:
    data = folder(pictures)
    assert data.classes == ("blue", "green", "red") and data.shape == (3, 8, 8)
    train, held_out = everything(data.train), everything(data.held_out)
    assert train["image"].dtype == torch.uint8 and train["label"].tolist() == [0, 0, 1, 1, 2, 2]
    assert train["image"][:, :, 4, 4].tolist() == [[0, 0, 250]] * 2 + [[0, 250, 0]] * 2 + [[250, 0, 0]] * 2
    assert held_out["label"].tolist() == [0, 1, 2]
    assert held_out["image"].float().mean((2, 3)).argmax(1).tolist() == [2, 1, 0]
    again = pickle.loads(pickle.dumps(data.train)).read(np.array([4, 1]))
    assert again["label"].tolist() == [2, 0] and torch.equal(again["image"], train["image"][[4, 1]])


def test_a_held_out_folder_may_have_fewer_classes_but_no_others(pictures: Path) -> None:
    for path in (pictures / "val" / "blue").iterdir():
        path.unlink()
    (pictures / "val" / "blue").rmdir()
    (pictures / "val").rename(pictures / "test")
    assert everything(folder(pictures).held_out)["label"].tolist() == [1, 2]
    (pictures / "test" / "pink").mkdir()
    with pytest.raises(TrainerError, match=rf"{pictures}/test/pink is a class that {pictures}/train does not have"):
        folder(pictures)


def test_without_a_held_out_folder_one_in_ten_is_held_out_by_its_path(tmp_path: Path) -> None:
    names = [f"train/{kind}/{number}.png" for kind in "ab" for number in range(60)]
    for number, name in enumerate(names):
        save(tmp_path / name, encoded(colour=(number, 0, 0)))
    data = folder(tmp_path)
    out = [number for number, hashed in enumerate(name_hashes(name.encode() for name in names)) if hashed % 10 == 0]
    assert 5 < len(out) < 25
    held_out, train = everything(data.held_out), everything(data.train)
    assert sorted(held_out["image"][:, 0, 0, 0].tolist()) == out
    assert sorted(train["image"][:, 0, 0, 0].tolist()) == sorted(set(range(120)) - set(out))
    assert torch.equal(held_out["label"], (held_out["image"][:, 0, 0, 0] >= 60).long())


@pytest.mark.parametrize("by_hash", ["all", "none"])
def test_of_very_few_images_one_is_held_out_whatever_their_hashes_say(tmp_path: Path, by_hash: str) -> None:
    names = [f"train/a/{number}.png" for number in range(99)]
    hashes = name_hashes(name.encode() for name in names)
    for place in np.flatnonzero((hashes % 10 == 0) == (by_hash == "all"))[:3]:
        save(tmp_path / names[place], encoded())
    data = folder(tmp_path)
    assert (len(data.train), len(data.held_out)) == (2, 1)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["cat/1.png"], "has no folder train with a folder of images for each class"),
        (["train/1.png"], "train has no folders: one for each class"),
        (["train/a/1.gif"], "has 0 images to train on and 0 to validate on"),
        (["train/a/1.png"], "has 0 images to train on and 1 to validate on"),
        (["train/a/1.png", "val/a/1.txt"], "has 1 images to train on and 0 to validate on"),
        (["train/a/1.png", "val/1.png"], "val has no folders"),
    ],
)
def test_other_layouts_are_refused_in_words(tmp_path: Path, files: list[str], says: str) -> None:
    for name in files:
        save(tmp_path / name, encoded())
    with pytest.raises(TrainerError, match=says):
        folder(tmp_path)


def test_an_image_of_another_size_names_the_setting_that_helps(pictures: Path) -> None:
    save(pictures / "train" / "green" / "1.png", encoded(size=(9, 8), colour=COLOURS["green"]))
    split = folder(pictures).train
    with pytest.raises(BrokenSample, match=r"sample 2 .*9 x 8 pixels, but the first image has 8 x 8; give --image-siz"):
        split.read(np.arange(6))
    assert len(everything(folder(pictures, image_size=5).train)["image"]) == 6


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "gone"])
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


def test_a_pipe_breaks_its_sample_and_is_not_waited_for(pictures: Path) -> None:
    path = pictures / "train" / "blue" / "1.png"  # the very first, from which the shape would be taken
    path.unlink()
    os.mkfifo(path)
    split = folder(pictures).train
    with pytest.raises(BrokenSample, match=rf"\({path}\) cannot be read: not a regular file") as caught:
        split.read(np.arange(len(split)))
    assert caught.value.index == 0


def test_a_folder_without_one_good_image_is_refused(pictures: Path) -> None:
    for path in (pictures / "train").rglob("*.*"):
        if path.is_file():
            path.write_bytes(b"no image")
    with pytest.raises(TrainerError, match=r"none of the first images in .*/train can be read: no image of a known"):
        folder(pictures)


def test_missing_pillow_is_named(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TrainerError, match=r"decodes images with Pillow: pip install 'gputui\[train\]'"):
        folder(pictures)


# --- decoding ---------------------------------------------------------------------------------------------------------


def gradient(width: int, height: int) -> Image.Image:
    """Red grows from left to right, green from top to bottom."""
    red = np.tile(np.linspace(0, 255, width), (height, 1))
    green = np.tile(np.linspace(0, 255, height)[:, None], (1, width))
    return Image.fromarray(np.stack([red, green, np.zeros_like(red)], -1).astype(np.uint8))


def as_bytes(image: Image.Image, kind: str, **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


@pytest.mark.parametrize(("width", "height"), [(100, 50), (50, 100), (64, 64), (999, 500)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_the_middle_is_kept_whatever_the_shape(width: int, height: int, kind: str) -> None:
    pixels = decode(as_bytes(gradient(width, height), kind), 16).float()
    assert pixels.shape == (3, 16, 16)
    side = min(width, height)
    for channel, length in ((0, width), (1, height)):
        along = pixels[channel].mean(0 if channel == 0 else 1)
        first, last = 255 * (length - side) / 2 / length, 255 * (length + side) / 2 / length
        expected = torch.linspace(first, last, 33)[1::2]
        assert (along - expected).abs().max() < 6


def test_an_image_smaller_than_asked_for_is_enlarged() -> None:
    assert decode(encoded(size=(3, 5)), 16).flatten(1).unique(dim=1).tolist() == [[250], [0], [0]]


def test_only_what_needs_it_is_resized() -> None:
    image = gradient(16, 16)
    assert torch.equal(decode(as_bytes(image, "PNG"), 16), decode(as_bytes(image, "PNG"), 0))


@pytest.mark.parametrize(
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
    pixels = decode(encoded(mode=mode, colour=colour), 0)
    assert pixels.shape == (3, 8, 8) and pixels[:, 3, 3].tolist() == expected


def test_cmyk_and_grey_jpegs_become_rgb() -> None:
    for mode, colour in (("CMYK", (0, 0, 0, 0)), ("L", 255)):
        assert decode(encoded("JPEG", mode=mode, colour=colour), 4).unique().tolist() == [255]


def test_pixels_are_counted_before_they_are_decoded() -> None:
    bomb = encoded(size=(8200, 8200), mode="1", colour=0)
    assert len(bomb) < 20_000
    with pytest.raises(UndecodableError, match=r"8200 x 8200 pixels are more than the 67,108,864"):
        decode(bomb, 32)


def test_other_kinds_of_images_are_not_opened() -> None:
    with pytest.raises(UndecodableError, match="no image of a known kind"):
        decode(encoded("GIF", mode="P", colour=0), 8)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_damage_anywhere_ends_in_pixels_or_in_one_error(kind: str) -> None:
    good = as_bytes(gradient(24, 18), kind)

    def check(content: bytes) -> None:
        try:
            assert decode(content, 8).shape == (3, 8, 8)
        except UndecodableError as error:
            assert str(error) and "\n" not in str(error)

    @given(st.integers(0, len(good) - 1), st.integers(1, 255))
    def flipped(place: int, mask: int) -> None:
        check(good[:place] + bytes([good[place] ^ mask]) + good[place + 1 :])

    @given(st.integers(0, len(good)))
    @example(0)
    def cut(length: int) -> None:
        check(good[:length])

    run: tuple[Callable[[], None], ...] = (flipped, cut)
    for law in run:
        law()
