"""Code as users write it: data, a model and a task, right and wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.trainer.splits import Rows
from trainer.data import BrokenSample, Images, Samples, Split, TensorSplit, Text
from trainer.data.contract import Fields, Indices
from trainer.tasks import Objective

FEATURES = 5


def table(count: int = 96) -> Samples:
    """A linear truth under a bit of noise."""
    draw = torch.Generator().manual_seed(1)
    features = torch.randn(count, FEATURES, generator=draw)
    target = features @ torch.arange(1.0, FEATURES + 1) + 0.1 * torch.randn(count, generator=draw)
    held_out = torch.arange(count) % 4 == 0
    train = TensorSplit({"features": features[~held_out], "target": target[~held_out]})
    test = TensorSplit({"features": features[held_out], "target": target[held_out]})
    return Samples(train, test, {"columns": FEATURES})


def network(columns: int, width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(columns, width), nn.Tanh(), nn.Linear(width, 1))


class Regression(Objective):
    """Least squares."""

    def forward(self, fields: Fields) -> Tensor:
        predicted = self.model(fields["features"]).squeeze(1)
        return nn.functional.mse_loss(predicted, fields["target"])


class Scaled(Regression):
    """With an argument and a metric of its own."""

    metrics = ("loss", "error")

    def __init__(self, model: nn.Module, seed: int, data: Samples, scale: float = 1.0) -> None:
        super().__init__(model)
        self.scale = scale
        assert isinstance(data, Samples)
        assert seed >= 0

    def forward(self, fields: Fields) -> Tensor:
        return super().forward(fields) * self.scale

    def measure(self, fields: Fields) -> dict[str, Tensor | float]:
        count = len(fields["target"])
        error = (self.model(fields["features"]).squeeze(1) - fields["target"]).abs().sum()
        return {"loss": self(fields) * count, "error": error, "count": count}


class Weighed(Regression):
    """A parameter outside the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.bias = nn.Parameter(torch.zeros(()))


class Pixels(Regression):
    """On the trainer's own images."""

    def forward(self, fields: Fields) -> Tensor:
        pixels = fields["image"].flatten(1) / 255
        return nn.functional.mse_loss(self.model(pixels), pixels)


class Autoencoder(nn.Module):
    """With statistics, dropout and a row of equal blocks: what a trial must leave alone, and what is recomputed."""

    def __init__(self, image_shape: tuple[int, int, int], width: int = 8) -> None:
        super().__init__()
        pixels = image_shape[0] * image_shape[1] * image_shape[2]
        self.encode = nn.Sequential(nn.Linear(pixels, width), nn.BatchNorm1d(width))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(2))
        self.decode = nn.Sequential(nn.Dropout(0.5), nn.Linear(width, pixels))

    def forward(self, pixels: Tensor) -> Tensor:
        features = self.encode(pixels)
        for block in self.blocks:
            features = block(features)
        rebuilt: Tensor = self.decode(features)
        return rebuilt


class Counting(Autoencoder):
    """It counts its batches, as codebooks and dead features are counted."""

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__(image_shape)
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, pixels: Tensor) -> Tensor:
        self.batches += 1
        return super().forward(pixels)


class Tiny(nn.Module):
    """A weight so small that half of it is 0."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.trained = nn.Linear(columns, 1)
        self.frozen = nn.Parameter(torch.full((), 1e-45))

    def forward(self, features: Tensor) -> Tensor:
        predicted: Tensor = self.trained(features) + self.frozen
        return predicted


def half_network(columns: int) -> nn.Module:
    """Weights in bf16, as those of large models are."""
    return network(columns).to(torch.bfloat16)


class FirstIsTorn(TensorSplit):
    """A table whose first row cannot be read."""

    def read(self, indices: Indices) -> Fields:
        if 0 in indices:
            raise BrokenSample(0, "row 0", "it is torn")
        return super().read(indices)


def torn() -> Samples:
    whole = table()
    assert isinstance(whole.train, TensorSplit)
    return Samples(FirstIsTorn(whole.train.fields), whole.held_out, whole.facts)


# --- data that are wrong ----------------------------------------------------------------------------------------------


def no_data() -> tuple[int, int]:
    return 1, 2


def no_splits() -> Any:
    return Samples([1, 2], [3])  # type: ignore[arg-type]


def nothing_held_out() -> Samples:
    return Samples(table().train, Rows(0))


def raising(data_dir: Any) -> Samples:
    return Samples(TensorSplit(torch.load(data_dir / "missing")), Rows(1))


def unequal() -> Samples:
    return Samples(TensorSplit({"features": torch.zeros(4, FEATURES), "target": torch.zeros(3)}), table().held_out)


class OneByOne(Split):
    """Samples that are not stacked."""

    def __len__(self) -> int:
        return 4

    def read(self, indices: Indices) -> Fields:
        return {"features": torch.zeros(FEATURES)}


def not_stacked() -> Samples:
    return Samples(OneByOne(), OneByOne())


def float_images() -> Images:
    split = TensorSplit({"image": torch.rand(4, 1, 8, 8), "label": torch.zeros(4, dtype=torch.int64)})
    return Images(split, split, (1, 8, 8), ("a", "b"))


def unknown_classes() -> Images:
    split = TensorSplit({"image": torch.zeros(4, 1, 8, 8, dtype=torch.uint8), "label": torch.full((4,), 2)})
    return Images(split, split, (1, 8, 8), ("a", "b"))


def good_images() -> Images:
    images = torch.randint(0, 256, (64, 1, 8, 8), dtype=torch.uint8)
    split = TensorSplit({"image": images, "label": torch.arange(64) % 2})
    return Images(split, split, (1, 8, 8), ("a", "b"))


def tokens_out_of_range() -> Text:
    split = TensorSplit({"tokens": torch.full((4, 17), 40)})
    return Text(split, split, 16, 40)


# --- tasks that are wrong ---------------------------------------------------------------------------------------------


class NoObjective:
    """Not a task."""


class Rowwise(Regression):
    """A loss for each sample instead of their mean."""

    def forward(self, fields: Fields) -> Tensor:
        return (self.model(fields["features"]).squeeze(1) - fields["target"]).square()


class Infinite(Regression):
    """A division by zero."""

    def forward(self, fields: Fields) -> Tensor:
        return super().forward(fields) / 0


class Detached(Regression):
    """A loss without gradients."""

    def forward(self, fields: Fields) -> Tensor:
        return super().forward(fields).detach()


class OtherMetrics(Regression):
    """Metrics that are not those which are measured."""

    metrics = ("loss", "r2")


class NotSummed(Regression):
    """A measure of rows that are not added up."""

    def measure(self, fields: Fields) -> dict[str, Tensor]:
        return {"loss": fields["target"], "count": torch.tensor(1)}


class CountsNothing(Regression):
    """A mean over nothing."""

    def measure(self, fields: Fields) -> dict[str, Tensor | float]:
        return {"loss": self(fields), "count": 0}


class OnlyTheLoss(Regression):
    """A measure that is no dictionary."""

    def measure(self, fields: Fields) -> Any:
        return self(fields)


class NoForward(Objective):
    """A loss by another name."""

    def loss(self, fields: Fields) -> Tensor:
        return self.model(fields["features"]).mean()


class FailsInValidation(Regression):
    """A mistake that shows after the first samples."""

    def measure(self, fields: Fields) -> dict[str, Tensor | float]:
        if len(fields["target"]) > 2:
            raise ZeroDivisionError("a mistake")
        return {"loss": float(self(fields)), "count": 1}


class WrongField(Regression):
    """A name that the data do not have."""

    def forward(self, fields: Fields) -> Tensor:
        return self.model(fields["feature"]).mean()
