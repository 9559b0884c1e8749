"""What can be trained: each task is an `Objective`, from raw samples to a loss and to what is measured."""

from trainer.tasks.build import build_objective
from trainer.tasks.objective import Objective

__all__ = ["Objective", "build_objective"]
