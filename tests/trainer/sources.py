"""Reading sources of data in tests: whole splits, the stream of their tokens, encoded images."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from PIL import Image

from trainer.config import Settings
from trainer.data import Images, Split, Text, load_data


def images(**values: Any) -> Images:
    data = load_data(Settings(**values))
    assert isinstance(data, Images)
    return data


def text(**values: Any) -> Text:
    data = load_data(Settings(**{"task": "lm", **values}))
    assert isinstance(data, Text)
    return data


def everything(split: Split) -> dict[str, torch.Tensor]:
    return split.read(np.arange(len(split)))


def stream(split: Split) -> list[int]:
    """The tokens of all windows, without the one that two windows share."""
    return [token for window in everything(split)["tokens"].tolist() for token in window[:-1]]


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    content = io.BytesIO()
    image.save(content, kind)
    return content.getvalue()
