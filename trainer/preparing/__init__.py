"""Documents to token files.

`documents` reads them, `packing` makes rows, `slices` writes the files of a part, `prepare` does it on all cores.
"""

from trainer.preparing.prepare import Prepared, prepare
from trainer.preparing.slices import PreparationPlan

__all__ = ["PreparationPlan", "Prepared", "prepare"]
