"""Changes of training images: functions of (seed, purpose, position) that keep what an image shows."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trainer.config import Settings
from trainer.tasks import augment
from trainer.tasks.augment import Augmentation
from trainer.tasks.draws import uniform

ANY = Augmentation(seed=3, purpose="test", height=12, width=16, smallest_area=0.2, flip=True, light=0.4)


def applied(augmentation: Augmentation, images: Tensor, positions: list[int]) -> Tensor:
    changes = augmentation.draw(np.array(positions))
    return augment.relit(augment.placed(images.float(), changes, augmentation.outside), changes)


def pictures(count: int, height: int = 12, width: int = 16) -> Tensor:
    return torch.randint(0, 256, (count, 3, height, width), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


# --- draws ------------------------------------------------------------------------------------------------------------


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


def test_draws_are_uniform_and_unrelated() -> None:
    draws = uniform(0, "a", np.arange(20_000), 4)
    others = [uniform(1, "a", np.arange(20_000), 4), uniform(0, "b", np.arange(20_000), 4)]
    counts = np.histogram(draws, bins=20, range=(0, 1))[0]
    assert ((counts - 4000) ** 2 / 4000).sum() < 50  # chi square with 19 degrees of freedom: 1 in 10 000
    columns = np.concatenate([draws, np.roll(draws, 1, axis=0), *others], axis=1)
    related = np.corrcoef(columns.T) - np.eye(16)
    assert np.abs(related).max() < 0.04


# --- changes ----------------------------------------------------------------------------------------------------------


@given(positions=st.lists(st.integers(0, 10**12), min_size=2, max_size=6), crop=st.booleans())
def test_an_image_changes_the_same_whatever_is_in_its_batch(positions: list[int], crop: bool) -> None:
    augmentation = ANY if crop else Augmentation(3, "test", 12, 16, padding=2, flip=True, light=0.4)
    images = pictures(len(positions))
    together = applied(augmentation, images, positions)
    for i, position in enumerate(positions):
        assert torch.equal(applied(augmentation, images[i : i + 1], [position])[0], together[i])


def test_seed_purpose_and_position_each_matter() -> None:
    changes = [
        one.draw(np.array([position])).tolist()
        for one in (ANY, Augmentation(4, "test", 12, 16, 0.2), Augmentation(3, "other", 12, 16, 0.2))
        for position in (0, 1)
    ]
    assert len({str(change) for change in changes}) == 6


def test_a_crop_is_a_part_of_the_image_of_the_promised_size_and_shape() -> None:
    across, left, down, top, contrast, brightness = ANY.draw(np.arange(5000)).numpy().T
    assert (np.abs(across) + np.abs(left) <= 1 + 1e-6).all()  # nothing from outside
    assert (down + np.abs(top) <= 1 + 1e-6).all()
    area = np.abs(across) * down
    whole = (np.abs(across) > 0.999) | (down > 0.999)
    assert area[~whole].min() >= 0.2 - 1e-6
    assert area.max() <= 1 + 1e-6
    ratio = np.abs(across) / down
    assert (ratio >= 3 / 4 - 1e-6).all() and (ratio <= 4 / 3 + 1e-6).all()
    assert 0.47 < (across < 0).mean() < 0.53
    for factor in (contrast, brightness):
        assert 0.6 <= factor.min() < 0.61 and 1.39 < factor.max() <= 1.4


def test_a_move_shifts_whole_pixels_and_brings_in_black() -> None:
    augmentation = Augmentation(0, "move", 12, 16, padding=2)
    images = pictures(200)
    moved = augment.placed(images.float(), augmentation.draw(np.arange(200)), augmentation.outside)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2)).float()
    seen = set()
    for i in range(200):
        places = {(t, s): padded[i, :, t : t + 12, s : s + 16] for t in range(5) for s in range(5)}
        matches = [place for place, part in places.items() if torch.allclose(part, moved[i], atol=1e-2)]
        assert len(matches) == 1
        seen.update(matches)
    assert len(seen) == 25


def test_a_mirror_image_is_the_image_mirrored() -> None:
    augmentation = Augmentation(0, "mirror", 12, 16, flip=True)
    images = pictures(40)
    result = applied(augmentation, images, list(range(40)))
    mirrored = [
        torch.allclose(one, image.flip(-1).float(), atol=1e-2) for one, image in zip(result, images, strict=True)
    ]
    same = [torch.allclose(one, image.float(), atol=1e-2) for one, image in zip(result, images, strict=True)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 10 < sum(mirrored) < 30


def test_a_crop_is_the_enlarged_part() -> None:
    ramp = torch.arange(16.0).expand(1, 1, 12, 16)
    half = torch.tensor([[0.5, 0.5, 1.0, 0.0, 1.0, 1.0]])  # the right half, all rows
    enlarged = augment.placed(ramp, half, "border")
    expected = torch.nn.functional.interpolate(ramp[..., 8:], size=(12, 16), mode="bilinear")
    # The same but at the seam, where a crop may look across and a part that was cut out may not.
    assert torch.allclose(enlarged[..., 1:], expected[..., 1:], atol=1e-4)


def test_light_scales_contrast_about_the_mean_then_everything() -> None:
    images = torch.tensor([[[[100.0, 140.0]]], [[[0.0, 250.0]]]])
    changes = torch.tensor([[1, 0, 1, 0, 0.5, 1.1], [1, 0, 1, 0, 1.4, 1.0]])
    relit = augment.relit(images, changes)
    assert torch.allclose(relit[0].flatten(), torch.tensor([121.0, 143.0]))
    assert relit[1].flatten().tolist() == [0, 255]


def test_coordinates_stay_exact_under_autocast() -> None:
    images = pictures(8, 200, 200).float()
    changes = Augmentation(0, "move", 200, 200, padding=9).draw(np.arange(8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reduced = augment.placed(images, changes, "zeros")
    assert torch.equal(reduced, augment.placed(images, changes, "zeros"))


# --- policies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "side", "expected"),
    [
        ("digits", 8, {"padding": 1, "flip": False, "smallest_area": None}),
        ("cifar10", 32, {"padding": 4, "flip": True, "smallest_area": None}),
        ("images", 224, {"padding": 0, "flip": True, "smallest_area": 0.08}),
    ],
)
def test_training_images_are_changed_as_suits_them(data: str, side: int, expected: dict[str, object]) -> None:
    settings = Settings.model_validate({"data": data, "data_dir": "somewhere", "augment": True})
    augmentation = augment.for_training(settings, (3, side, side))
    assert augmentation is not None
    assert {name: getattr(augmentation, name) for name in expected} == expected
    assert augmentation.light == 0
    assert pickle.loads(pickle.dumps(augmentation)) == augmentation


def test_without_augment_nothing_is_changed() -> None:
    assert augment.for_training(Settings(), (1, 8, 8)) is None


def test_views_of_digits_are_never_mirrored() -> None:
    digits = augment.for_view(Settings(task="contrastive"), (1, 8, 8), "view")
    natural = augment.for_view(Settings(task="contrastive", data="synthetic"), (3, 32, 32), "view")
    assert (digits.flip, natural.flip) == (False, True)
    assert (digits.draw(np.arange(500))[:, 0] > 0).all()
