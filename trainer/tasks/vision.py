"""What the two ways to learn from images share."""

from __future__ import annotations

from torch import nn

from trainer.config import Settings
from trainer.data.contract import Images
from trainer.models import flops_per_sample
from trainer.tasks.objective import Objective
from trainer.tasks.pixels import Pixels


class VisionObjective(Objective):
    """An objective over images of `shape` (channels, height, width); the model sees each one `views` times."""

    views = 1

    def __init__(self, settings: Settings, data: Images, model: nn.Module) -> None:
        super().__init__(model)
        self.shape = data.shape
        self.pixels = Pixels(settings, data.shape[0])

    def flops_per_sample(self) -> float | None:
        try:
            return self.views * flops_per_sample(self.model, self.shape)
        except RuntimeError:  # a person's own model that cannot do without values
            return None
