"""Crops out of images as their files have them: full detail, the promised parts, the same however they are read."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn

from tests.trainer.comparing import same
from tests.trainer.ranks import ALONE
from tests.trainer.running import train
from tests.trainer.sources import encoded, images
from trainer.checkpoints import load
from trainer.config import Settings
from trainer.data.contract import Images
from trainer.data.feed import BatchFeed, Share
from trainer.data.images import Box, EncodedImages, cropped, decode
from trainer.tasks import build_objective
from trainer.tasks.objective import Objective

SIZE = 64
SHARE = Share(0, 1, torch.device("cpu"))


def stripes(width: int, height: int) -> Image.Image:
    """Columns of black and white, two pixels wide, whose deviation is 127.5."""
    columns = (np.arange(width) // 2 % 2 * 255).astype(np.uint8)
    return Image.fromarray(np.repeat(np.tile(columns, (height, 1))[:, :, None], 3, axis=2))


def gradient(width: int, height: int) -> Image.Image:
    """Red grows to the right, green downwards."""
    red = np.tile(np.linspace(0, 255, width), (height, 1))
    green = np.tile(np.linspace(0, 255, height)[:, None], (1, width))
    return Image.fromarray(np.stack([red, green, np.zeros_like(red)], -1).round().astype(np.uint8))


@pytest.fixture(params=["folder", "parquet"])
def photos(request: pytest.FixtureRequest, tmp_path: Path) -> Images:
    """Twelve images to train on, of different sizes, and two held out."""
    contents = [encoded(gradient(200 + 10 * number, 300), "JPEG") for number in range(12)]
    settings = {"image_size": SIZE, "data_dir": tmp_path}
    if request.param == "parquet":
        for name, part in (("train", contents), ("val", contents[:2])):
            rows = {"image": part, "label": [number % 2 for number in range(len(part))]}
            pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / f"{name}.parquet", row_group_size=4)
        return images(data="parquet", **settings)
    for number, content in enumerate(contents):
        for part in ("train", "val")[: 1 + (number < 2)]:
            path = tmp_path / part / "ab"[number % 2] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return images(data="images", **settings)


def task(data: Images, name: str = "classify") -> Objective:
    settings = Settings.model_validate(
        {"task": name, "data": "images", "augment": True, "image_size": SIZE, "batch_size": 4}
    )
    return build_objective(settings, data, nn.Identity(), ALONE)


def batches(data: Images, objective: Objective, *, first: int, count: int, workers: int = 0) -> list[dict[str, Tensor]]:
    """Batches of four from sample `first` of the run on."""
    settings = Settings.model_validate({"batch_size": 4, "num_workers": workers})
    transform = objective.transform(training=True)
    crops = objective.crops()
    with closing(BatchFeed(data.train, transform, settings, SHARE, crops=crops)) as feed:
        feed.seek(first, 4)
        return [feed.next() for _ in range(count)]


@given(
    width=st.integers(1, 9000),
    height=st.integers(1, 9000),
    area=st.floats(0.08, 1),
    ratio=st.floats(3 / 4, 4 / 3),
    across=st.floats(0, 1),
    down=st.floats(0, 1),
)
def test_a_crop_lies_in_the_image_and_has_the_area_that_was_drawn(
    width: int, height: int, area: float, ratio: float, across: float, down: float
) -> None:
    box = cropped(width, height, np.array([area, ratio, across, down]))
    assert min(box.x, box.y) >= 0
    assert box.x + box.width <= width * (1 + 1e-12)
    assert box.y + box.height <= height * (1 + 1e-12)
    if box.width < width and box.height < height:
        assert box.width * box.height == pytest.approx(area * width * height)
        assert box.width / box.height == pytest.approx(ratio)


def test_a_crop_has_the_detail_of_the_file() -> None:
    content = encoded(stripes(640, 480), "PNG")
    side = math.sqrt(0.08 * 640 * 480)  # 157 pixels, shown on 224

    box = Box(100.0, 100.0, side, side)
    assert decode(content, 224, part=lambda *_: box).float().std() > 100
    assert decode(content, 224).float().std() < 50, "a whole image of this size has lost it"


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
# A JPEG of 1800 pixels is decoded at a part of its size, and the first size is the one that crops are resized to.
@pytest.mark.parametrize(("width", "height"), [(SIZE, SIZE), (40, 300), (200, 300), (1800, 300)])
def test_a_crop_shows_the_part_that_was_drawn(kind: str, width: int, height: int) -> None:
    content = encoded(gradient(width, height), kind)
    box = Box(0.25 * width, 0.1 * height, 0.5 * width, 0.2 * height)
    pixels = decode(content, SIZE, part=lambda *_: box).float()
    centres = (torch.arange(SIZE) + 0.5) / SIZE
    assert (pixels[0].mean(0) - 255 * (0.25 + 0.5 * centres)).abs().max() < 8
    assert (pixels[1].mean(1) - 255 * (0.1 + 0.2 * centres)).abs().max() < 8


def test_held_out_images_show_the_middle_that_published_figures_show(photos: Images) -> None:
    pixels = photos.held_out.read(np.array([0]))["image"][0].float()  # 200 x 300
    half = 0.5 * 0.875 * 200
    centres = (torch.arange(SIZE) + 0.5) / SIZE
    assert (pixels[0].mean(0) - 255 * (100 - half + 2 * half * centres) / 200).abs().max() < 8
    assert (pixels[1].mean(1) - 255 * (150 - half + 2 * half * centres) / 300).abs().max() < 8


@pytest.mark.parametrize("name", ["classify", "contrastive"])
def test_crops_are_the_same_however_they_are_read(photos: Images, name: str) -> None:
    objective = task(photos, name)
    straight = batches(photos, objective, first=0, count=5)
    assert straight[0]["image"].shape[-2:] == (SIZE, SIZE)
    assert same(straight[2:], batches(photos, objective, first=8, count=3))
    if photos.train.blocks is None:  # else each process reads row groups of its own, in another order
        assert same(straight, batches(photos, objective, first=0, count=5, workers=2))
    assert not torch.equal(straight[0]["image"], straight[3]["image"]), "the next epoch has other crops"


def test_two_views_are_two_crops_of_one_image(photos: Images) -> None:
    objective = task(photos, "contrastive")
    [batch] = batches(photos, objective, first=0, count=1)
    assert batch["image"].shape == (4, 2, 3, SIZE, SIZE)
    assert len(set(batch["identity"].tolist())) == 4
    assert not torch.equal(batch["image"][:, 0], batch["image"][:, 1])


def test_small_images_and_those_in_memory_are_changed_on_the_device(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / "train" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(gradient(90, 90), "PNG"))
    for size in (0, 32):
        settings = Settings.model_validate(
            {"data": "images", "data_dir": tmp_path, "image_size": size, "augment": True}
        )
        data = images(data="images", data_dir=tmp_path, image_size=size)
        assert isinstance(data.train, EncodedImages)
        assert build_objective(settings, data, nn.Identity(), ALONE).crops() is None
    assert task(images(data="digits", image_size=SIZE)).crops() is None


def test_a_run_with_crops_resumes_bit_for_bit(photos: Images, tmp_path: Path) -> None:
    source = "parquet" if list(tmp_path.glob("*.parquet")) else "images"
    flags = ("--data", source, "--data-dir", str(tmp_path), "--image-size", str(SIZE), "--augment", "--keep", "9")
    flags += ("--steps", "4", "--checkpoint-every", "2", "--validate-every", "0", "--batch-size", "2")
    flags += ("--num-workers", "1")
    assert train(tmp_path / "straight", *flags) == 0
    begin = str(tmp_path / "straight" / "checkpoints" / "step_00000002.pt")
    assert train(tmp_path / "again", *flags, "--resume", begin) == 0
    first, second = (load(tmp_path / name / "checkpoints" / "step_00000004.pt") for name in ("straight", "again"))
    assert same(first["model"], second["model"])
