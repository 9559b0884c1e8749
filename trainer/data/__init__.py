"""Data sets, the order of their samples, and reading them into batches.

--data and --data-dir come in; batches on a rank's device go out, from any position of the run. `contract` says what a
data set is, `sources` lists all of them, one module each; `order` is the order of samples, a function of seed and
position; `reading` makes batches, in processes; `feed` is what the training loop uses. Read `contract` first.
"""

from trainer.data.contract import BrokenSample, Data, Fields, Images, Indices, ReadsAhead, Split, Text, Transform
from trainer.data.sources import load_data

__all__ = [
    "BrokenSample",
    "Data",
    "Fields",
    "Images",
    "Indices",
    "ReadsAhead",
    "Split",
    "Text",
    "Transform",
    "load_data",
]
