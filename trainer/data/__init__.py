"""The data: where it comes from, which samples a run takes when, and how they get to the task.

In come --data and its folder, out come batches on a rank's device, from any position of the run on. `contract` says
what a data set is and `sources` has them all, one module each; `sampler` is the order, a function of seed and position
(`shuffle`, or `block_order` with `deals`); `samples` passes over broken ones, `reading` and `workers` read, `feed` is
what the loop takes. Read `contract` first.
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
