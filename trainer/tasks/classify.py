"""Image classification."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.config import Settings
from trainer.data.contract import Fields, Images, Indices, Transform
from trainer.tasks import augment
from trainer.tasks.augment import Augmentation
from trainer.tasks.vision import VisionObjective

_TOP_5_FROM = 11  # classes; with fewer it says little


class Classification(VisionObjective):
    """Cross-entropy of logits [n, classes] and labels; label smoothing counts in training only.

    Measures ``loss``, ``accuracy`` and, where there are more than ten classes, ``top5_accuracy``.
    """

    def __init__(self, settings: Settings, data: Images, model: nn.Module) -> None:
        super().__init__(settings, data, model)
        self._label_smoothing = settings.label_smoothing
        self._augmentation = augment.for_training(settings, data.shape)
        self._top_5 = len(data.classes) >= _TOP_5_FROM

    def forward(self, fields: Fields) -> Tensor:
        images = fields["image"]
        if self._augmentation is not None and "changes" in fields:
            images = augment.placed(images.float(), fields["changes"], self._augmentation.outside)
        logits: Tensor = self.model(self.pixels(images))
        return functional.cross_entropy(logits.float(), fields["label"], label_smoothing=self._label_smoothing)

    @torch.no_grad()
    def measure(self, fields: Fields) -> dict[str, Tensor]:
        logits: Tensor = self.model(self.pixels(fields["image"]))
        labels = fields["label"]
        sums = {
            "loss": functional.cross_entropy(logits.float(), labels, reduction="sum"),
            "accuracy": (logits.argmax(-1) == labels).sum(),
            "count": torch.full_like(labels[0], len(labels)),
        }
        if self._top_5:
            sums["top5_accuracy"] = (logits.topk(5).indices == labels.unsqueeze(-1)).sum()
        return sums

    def transform(self, *, training: bool) -> Transform:
        return _WithChanges(self._augmentation if training else None)


@dataclass(frozen=True)
class _WithChanges:
    """Images and labels as they are, and with augmentation what shall happen to the images."""

    augmentation: Augmentation | None

    def __call__(self, raw: Fields, positions: Indices) -> Fields:
        if self.augmentation is None:
            return raw
        return {**raw, "changes": self.augmentation.draw(positions)}
