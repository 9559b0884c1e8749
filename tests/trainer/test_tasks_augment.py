"""Changes of training images: functions of (seed, purpose, position) that keep what an image shows."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trainer.tasks import augment
from trainer.tasks.augment import Augmentation
from trainer.tasks.objective import uniform

ANY = Augmentation(seed=3, purpose="test", height=12, width=16, smallest_area=0.2, flip=True, light=0.4)


def applied(augmentation: Augmentation, images: Tensor, positions: list[int]) -> Tensor:
    changes = augmentation.draw(np.array(positions))
    return augment.relit(augmentation.placed(images, changes), changes)


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


# --- changes ----------------------------------------------------------------------------------------------------------


@given(positions=st.lists(st.integers(0, 10**12), min_size=2, max_size=6), crop=st.booleans())
def test_an_image_changes_the_same_whatever_is_in_its_batch(positions: list[int], crop: bool) -> None:
    augmentation = ANY if crop else Augmentation(3, "test", 12, 16, padding=2, flip=True, light=0.4)
    images = pictures(len(positions))
    together = applied(augmentation, images, positions)
    for i, position in enumerate(positions):
        assert torch.equal(applied(augmentation, images[i : i + 1], [position])[0], together[i])


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
    moved = augmentation.placed(images, augmentation.draw(np.arange(200)))
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2)).float()
    seen = set()
    for i in range(200):
        places = {(t, s): padded[i, :, t : t + 12, s : s + 16] for t in range(5) for s in range(5)}
        matches = [place for place, part in places.items() if torch.allclose(part, moved[i], atol=1e-2)]
        assert len(matches) == 1
        seen.update(matches)
    assert len(seen) == 25


def test_light_scales_contrast_about_the_mean_then_everything() -> None:
    images = torch.tensor([[[[100.0, 140.0]]], [[[0.0, 250.0]]]])
    changes = torch.tensor([[1, 0, 1, 0, 0.5, 1.1], [1, 0, 1, 0, 1.4, 1.0]])
    relit = augment.relit(images, changes)
    assert torch.allclose(relit[0].flatten(), torch.tensor([121.0, 143.0]))
    assert relit[1].flatten().tolist() == [0, 255]
