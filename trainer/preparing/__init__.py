"""Documents to token files: `documents` reads them, `packing` makes rows, `prepare` does it on all cores."""

from trainer.preparing.prepare import PreparationPlan, Prepared, prepare

__all__ = ["PreparationPlan", "Prepared", "prepare"]
