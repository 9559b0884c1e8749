"""Documents to token files: `documents` finds them, `packing` makes rows of them, `prepare` does it on all cores."""

from trainer.preparing.prepare import PreparationPlan, Prepared, prepare

__all__ = ["PreparationPlan", "Prepared", "prepare"]
