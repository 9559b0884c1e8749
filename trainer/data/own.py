"""Data from the user's own function, checked by its first samples."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Data, Fields, Images, Samples, Split, Text
from trainer.errors import SettingsError, one_line
from trainer.own_code import call, explained

_TRIED = 2  # samples: one would hide that they are not stacked


def own_data(settings: Settings) -> Data:
    """What ``package.module:function`` returns, called with those settings that it takes and with data_options.

    Raises SettingsError if it is no data, or if the first samples of a split are not what the trainer expects.
    """
    name = settings.data
    with explained("data", name, "it fails"):
        data = call("data", name, dict(settings), settings.data_options)
    if not isinstance(data, Images | Text | Samples):
        raise SettingsError(f"data: {name} returned {type(data).__name__}, not Images, Text or Samples of trainer.data")
    for part, split in (("train", data.train), ("held_out", data.held_out)):
        if not isinstance(split, Split):
            raise SettingsError(f"data: {name}: {part} is {type(split).__name__}, not a Split of trainer.data")
        with explained("data", name, f"{part} cannot be read"):
            for problem in _problems(split, data, settings):
                raise SettingsError(f"data: {name}: {part} {problem}")
    return data


def _problems(split: Split, data: Data, settings: Settings) -> Iterator[str]:
    """What is wrong with a split, in words that follow its name."""
    if len(split) == 0:
        yield "has no samples"
    if settings.num_workers:
        try:
            pickle.dumps(split)
        except Exception as error:  # an object may raise anything when it is pickled
            yield f"cannot be sent to reading processes ({one_line(error)}); use --num-workers 0"
    count = min(_TRIED, len(split))
    try:
        fields: Any = split.read(np.arange(count))
    except BrokenSample:  # it is replaced in training
        return
    if not isinstance(fields, dict) or not fields:
        yield f"reads {type(fields).__name__}, not tensors by their names"
    for name, tensor in fields.items():
        if not isinstance(tensor, Tensor):
            yield f"reads {type(tensor).__name__} as {name!r}, not a tensor"
        if tensor.dim() == 0 or len(tensor) != count:
            shape = tuple(tensor.shape)
            yield f"reads {name!r} of shape {shape} for {count} samples: stack them along the first dimension"
    if isinstance(data, Images):
        yield from _wrong_images(fields, data)
    elif isinstance(data, Text):
        yield from _wrong_text(fields, data)


def _wrong_images(fields: Fields, data: Images) -> Iterator[str]:
    yield from _wrong_tensor(fields, "image", torch.uint8, data.shape)
    yield from _wrong_tensor(fields, "label", torch.int64, ())
    yield from _out_of_range(fields["label"], "label", len(data.classes))


def _wrong_text(fields: Fields, data: Text) -> Iterator[str]:
    shape = (data.context + 1,)
    yield from _wrong_tensor(fields, "tokens", torch.int64, shape)
    yield from _out_of_range(fields["tokens"], "tokens", data.vocabulary)
    if data.marked:
        yield from _wrong_tensor(fields, "learn", torch.bool, shape)
        yield from _wrong_tensor(fields, "begin", torch.bool, shape)


def _wrong_tensor(fields: Fields, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Iterator[str]:
    if name not in fields:
        yield f"reads no {name!r}, only {', '.join(fields)}"
    tensor = fields[name]
    if tensor.dtype != dtype or tensor.shape[1:] != shape:
        expected = ("n", *shape)
        yield f"reads {name!r} as {tensor.dtype} {tuple(tensor.shape)}, not {dtype} ({', '.join(map(str, expected))})"


def _out_of_range(numbers: Tensor, name: str, count: int) -> Iterator[str]:
    if numbers.min() < 0 or numbers.max() >= count:
        yield f"reads {name!r} from {numbers.min()} to {numbers.max()}, not from 0 to {count - 1}"
