"""What can be trained: each task is an `Objective`, from raw samples to a loss and to what is measured.

In comes a model and the data's kind, out come a mean loss per batch and sums over held-out batches. `language` has
next-token and masked prediction, `vision` classification, `contrastive` InfoNCE over all ranks; `augment` and `draws`
change samples by seed and position alone. Read `objective` first.
"""

from trainer.tasks.build import build_objective
from trainer.tasks.objective import Objective

__all__ = ["Objective", "build_objective"]
