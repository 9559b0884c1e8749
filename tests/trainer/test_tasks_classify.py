"""Classification: the loss, what is measured, and how bytes become numbers."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.tables import table
from tests.trainer.no_split import NoSplit
from trainer.config import Settings
from trainer.data.contract import Fields, Images
from trainer.tasks.vision import Classification, Pixels


class Tiny(nn.Module):
    """Images to logits by one matrix."""

    def __init__(self, values: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(values, classes)
        self.seen: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        self.seen = images
        logits: Tensor = self.head(images.flatten(1))
        return logits


def images_of(shape: tuple[int, int, int], classes: int) -> Images:
    return Images(NoSplit(), NoSplit(), shape, tuple(str(number) for number in range(classes)))


def objective(classes: int = 10, shape: tuple[int, int, int] = (1, 4, 4), **settings: Any) -> Classification:
    torch.manual_seed(0)
    channels, height, width = shape
    model = Tiny(channels * height * width, classes)
    return Classification(Settings.model_validate(settings), images_of(shape, classes), model)


def batch(count: int, classes: int = 10, shape: tuple[int, int, int] = (1, 4, 4)) -> Fields:
    random = torch.Generator().manual_seed(2)
    return {
        "image": torch.randint(0, 256, (count, *shape), generator=random).to(torch.uint8),
        "label": torch.randint(0, classes, (count,), generator=random),
    }


def test_smoothing_counts_in_training_only() -> None:
    task, fields = objective(label_smoothing=0.2), batch(6)
    logits = task.model(fields["image"] / 255)
    assert torch.allclose(task(fields), functional.cross_entropy(logits, fields["label"], label_smoothing=0.2))
    measured = task.measure(fields)
    assert torch.allclose(measured["loss"], functional.cross_entropy(logits, fields["label"], reduction="sum"))
    assert measured["count"] == 6
    assert not measured["loss"].requires_grad


def test_the_mean_of_two_losses_is_the_loss_of_the_joined_batch() -> None:
    task, fields = objective(label_smoothing=0.1), batch(8)
    halves = [{name: value[part] for name, value in fields.items()} for part in (slice(4), slice(4, 8))]
    assert torch.allclose((task(halves[0]) + task(halves[1])) / 2, task(fields))


def test_sums_over_batches_become_means() -> None:
    task, fields = objective(classes=12), batch(10, classes=12)
    parts = [task.measure({name: value[part] for name, value in fields.items()}) for part in (slice(7), slice(7, 10))]
    means = task.summary({name: sum(float(part[name]) for part in parts) for name in parts[0]})
    logits, labels = task.model(fields["image"] / 255), fields["label"]
    ranks = (logits > logits.gather(1, labels.unsqueeze(1))).sum(1)
    assert means["loss"] == pytest.approx(functional.cross_entropy(logits, labels).item())
    assert means["accuracy"] == pytest.approx(float((ranks == 0).float().mean()))
    assert means["top5_accuracy"] == pytest.approx(float((ranks < 5).float().mean()))
    assert set(means) == {"loss", "accuracy", "top5_accuracy"}


def test_augmented_images_reach_the_model_in_training_only() -> None:
    task = objective(augment=True, shape=(1, 8, 8))
    raw, positions = batch(5, shape=(1, 8, 8)), np.arange(100, 105)
    training, held_out = task.transform(training=True), task.transform(training=False)
    fields = training(raw, positions)
    assert torch.equal(fields["changes"], pickle.loads(pickle.dumps(training))(raw, positions)["changes"])
    task(fields)
    assert isinstance(task.model, Tiny) and task.model.seen is not None
    assert not torch.allclose(task.model.seen, raw["image"] / 255, atol=1e-3)
    task.measure(held_out(raw, positions))
    assert torch.allclose(task.model.seen, raw["image"] / 255)
    task(held_out(raw, positions))
    assert torch.allclose(task.model.seen, raw["image"] / 255)


@table(
    ("data", "channels", "mean", "deviation"),
    [
        ("digits", 1, [0.0], [1.0]),
        ("cifar10", 3, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
        ("images", 3, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ("synthetic", 1, [0.449], [0.226]),
    ],
)
@table("channels_last", [False, True])
def test_bytes_become_normalised_numbers(
    data: str, channels: int, mean: list[float], deviation: list[float], channels_last: bool
) -> None:
    settings = Settings.model_validate({"data": data, "data_dir": "somewhere", "channels_last": channels_last})
    pixels = Pixels(settings, channels)
    images = batch(3, shape=(channels, 5, 7))["image"]
    numbers = pixels(images)
    centred = images.double() / 255 - torch.tensor(mean, dtype=torch.float64).view(1, -1, 1, 1)
    expected = (centred / torch.tensor(deviation, dtype=torch.float64).view(1, -1, 1, 1)).float()
    assert numbers.dtype == torch.float32
    assert torch.allclose(numbers, expected, atol=1e-6)
    assert torch.allclose(pixels(images.float()), expected, atol=1e-6)
    order = torch.channels_last if channels_last else torch.contiguous_format
    assert numbers.is_contiguous(memory_format=order)
    assert not pixels.state_dict()  # constants are no part of a checkpoint
