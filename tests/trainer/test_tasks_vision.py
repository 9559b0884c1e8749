"""Images: random changes by (seed, purpose, position) that keep what they show, their numbers, and classification."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from tests.tables import table
from tests.trainer.splits import Rows
from trainer.config import Settings
from trainer.data.contract import Fields, Images
from trainer.tasks.objective import uniform
from trainer.tasks.vision import Augmentation, Classification, Pixels

# --- random changes ---------------------------------------------------------------------------------------------------

ANY = Augmentation(seed=3, height=12, width=16, smallest_area=0.2, flip=True, light=0.4)


def pictures(count: int) -> Tensor:
    return torch.randint(0, 256, (count, 3, 12, 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


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


def objective(classes: int = 10, side: int = 4, **settings: Any) -> Classification:
    torch.manual_seed(0)
    images = Images(Rows(0), Rows(0), (1, side, side), tuple(str(number) for number in range(classes)))
    return Classification(Settings.model_validate(settings), images, Tiny(side * side, classes))


def batch(count: int, classes: int = 10, shape: tuple[int, int, int] = (1, 4, 4)) -> Fields:
    random = torch.Generator().manual_seed(2)
    return {
        "image": torch.randint(0, 256, (count, *shape), generator=random).to(torch.uint8),
        "label": torch.randint(0, classes, (count,), generator=random),
    }


@given(
    seed=st.integers(0, 2**80),
    positions=st.lists(st.integers(0, 2**50), min_size=1, max_size=9),
    count=st.integers(1, 5),
)
def test_draws_depend_on_their_position_alone(seed: int, positions: list[int], count: int) -> None:
    together = uniform(seed, "purpose", np.array(positions), count)
    alone = [uniform(seed, "purpose", np.array([position]), count + 3)[0, :count] for position in positions]
    assert np.array_equal(together, np.stack(alone))
    assert ((together >= 0) & (together < 1)).all()


@given(positions=st.lists(st.integers(0, 10**12), min_size=2, max_size=6), crop=st.booleans())
def test_an_image_changes_the_same_whatever_is_in_its_batch(positions: list[int], crop: bool) -> None:
    augmentation = ANY if crop else Augmentation(3, 12, 16, padding=2, flip=True, light=0.4)
    images = pictures(len(positions))
    changes = augmentation.draw("test", np.array(positions))
    together = augmentation.apply(images, changes)
    for i, position in enumerate(positions):
        drawn = augmentation.draw("test", np.array([position]))
        assert torch.equal(augmentation.apply(images[i : i + 1], drawn)[0], together[i])


def test_a_crop_is_a_part_of_the_image_of_the_promised_size_and_shape() -> None:
    across, sideways, down, top, contrast, brightness = ANY.draw("test", np.arange(5000)).numpy().T
    assert (np.abs(across) + np.abs(sideways) <= 1 + 1e-6).all()  # nothing from outside
    assert (down + np.abs(top) <= 1 + 1e-6).all()
    area = np.abs(across) * down
    whole = (np.abs(across) > 0.999) | (down > 0.999)
    assert area[~whole].min() >= 0.2 - 1e-6
    assert area.max() <= 1 + 1e-6
    ratio = np.abs(across) / down
    assert (ratio >= 3 / 4 - 1e-6).all()
    assert (ratio <= 4 / 3 + 1e-6).all()
    assert 0.47 < (across < 0).mean() < 0.53
    for factor in (contrast, brightness):
        assert 0.6 <= factor.min() < 0.61
        assert 1.39 < factor.max() <= 1.4


def test_a_move_shifts_whole_pixels_and_brings_in_black() -> None:
    augmentation = Augmentation(0, 12, 16, padding=2)
    images = pictures(200)
    moved = augmentation.apply(images, augmentation.draw("move", np.arange(200)))
    padded = functional.pad(images, (2, 2, 2, 2)).float()
    matches = set()
    for i in range(200):
        places = {(t, s): padded[i, :, t : t + 12, s : s + 16] for t in range(5) for s in range(5)}
        [match] = [place for place, part in places.items() if torch.allclose(part, moved[i], atol=1e-2)]
        matches.add(match)
    assert len(matches) == 25


def test_light_scales_contrast_about_the_mean_then_everything() -> None:
    images = torch.tensor([[[[100.0, 140.0]]], [[[0.0, 250.0]]]])
    changes = torch.tensor([[1, 0, 1, 0, 0.5, 1.1], [1, 0, 1, 0, 1.4, 1.0]])
    relit = Augmentation(0, 1, 2, smallest_area=1.0, light=0.5).apply(images, changes)
    assert torch.allclose(relit.flatten(), torch.tensor([121.0, 143.0, 0.0, 255.0]), atol=1e-3)


# --- classification ---------------------------------------------------------------------------------------------------


def test_the_loss_is_a_mean_and_smoothed_in_training_only() -> None:
    task = objective(label_smoothing=0.2)
    fields = batch(8)
    logits = task.model(fields["image"] / 255)
    assert torch.allclose(task(fields), functional.cross_entropy(logits, fields["label"], label_smoothing=0.2))
    measured = task.measure(fields)
    assert torch.allclose(measured["loss"], functional.cross_entropy(logits, fields["label"], reduction="sum"))
    assert measured["count"] == 8
    assert not measured["loss"].requires_grad
    halves = [{name: value[part] for name, value in fields.items()} for part in (slice(4), slice(4, 8))]
    assert torch.allclose((task(halves[0]) + task(halves[1])) / 2, task(fields))


def test_sums_over_batches_become_means() -> None:
    task = objective(classes=12)
    fields = batch(10, classes=12)
    parts = [task.measure({name: value[part] for name, value in fields.items()}) for part in (slice(7), slice(7, 10))]
    means = task.summary({name: sum(float(part[name]) for part in parts) for name in parts[0]})
    logits = task.model(fields["image"] / 255)
    labels = fields["label"]
    ranks = (logits > logits.gather(1, labels.unsqueeze(1))).sum(1)
    assert means == {
        "loss": pytest.approx(functional.cross_entropy(logits, labels).item()),
        "accuracy": pytest.approx(float((ranks == 0).float().mean())),
        "top5_accuracy": pytest.approx(float((ranks < 5).float().mean())),
    }
    assert set(task.metrics) == set(means)
    assert set(objective().metrics) == {"loss", "accuracy"}


def test_augmented_images_reach_the_model_in_training_only() -> None:
    task = objective(augment=True, side=8)
    raw = batch(5, shape=(1, 8, 8))
    positions = np.arange(100, 105)
    training = task.transform(training=True)
    held_out = task.transform(training=False)
    fields = training(raw, positions)
    assert torch.equal(fields["changes"], pickle.loads(pickle.dumps(training))(raw, positions)["changes"])
    task(fields)
    assert isinstance(task.model, Tiny)
    assert task.model.seen is not None
    assert not torch.allclose(task.model.seen, raw["image"] / 255, atol=1e-3)
    for evaluate in (task.measure, task):
        evaluate(held_out(raw, positions))
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
