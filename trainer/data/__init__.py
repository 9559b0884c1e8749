"""The data: where it comes from, which samples a run takes when, and how they get to the task.

`contract` says what a data set is; `sources` has them all, one module each. `sampler` is the order, `samples` passes
over broken ones, `reading` and `workers` read, and `feed` is what the training loop takes batches from.
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
