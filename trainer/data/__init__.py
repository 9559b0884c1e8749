"""Data sets, the order of their samples, and reading them into batches.

`contract` says what a data set is, `order` is a function of seed and position (with `deals` of blocks to readers, and
`randomness` without state), `readers` read samples, `feed` makes batches of them on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainer.config import Settings
from trainer.config.schema import IMAGE_TASKS, is_own
from trainer.data.contract import BrokenSample, Data, Images, Samples, Split, TensorSplit, Text
from trainer.data.images import cifar10, folder
from trainer.data.own import own_data
from trainer.data.parquet import parquet_images, parquet_text
from trainer.data.text import stdlib, text_files, tokens
from trainer.data.toy import digits, synthetic_images, synthetic_text

__all__ = ["BrokenSample", "Data", "Images", "Samples", "Split", "TensorSplit", "Text", "load_data"]

_IMAGES: Mapping[str, Callable[[Settings], Images]] = {
    "auto": digits,
    "digits": digits,
    "cifar10": cifar10,
    "images": folder,
    "parquet": parquet_images,
    "synthetic": synthetic_images,
}
_TEXT: Mapping[str, Callable[[Settings], Text]] = {
    "auto": stdlib,
    "stdlib": stdlib,
    "text": text_files,
    "tokens": tokens,
    "documents": tokens,
    "parquet": parquet_text,
    "synthetic": synthetic_text,
}


def load_data(settings: Settings) -> Data:
    """The data that --data names. If it may be both, images for classify and contrastive, text for lm and mlm.

    Raises SettingsError for a setting, and TrainerError for files, that are missing or wrong.
    """
    if is_own(settings.data):
        return own_data(settings)
    if settings.task in IMAGE_TASKS or settings.data not in _TEXT:
        return _IMAGES[settings.data](settings)
    return _TEXT[settings.data](settings)
