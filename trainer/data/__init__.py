"""Data sets, the order of their samples, and reading them into batches.

--data and --data-dir come in; batches on a rank's device go out, from any position of the run. `contract` says what a
data set is; `images`, `text`, `parquet` and `toy` are all there are; `order` is the order of samples, a function of
seed and position; `feed` makes batches, in processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Data, Images, Split, Text
from trainer.data.images import cifar10, folder
from trainer.data.parquet import parquet_images, parquet_text
from trainer.data.text import documents, stdlib, text_files, tokens
from trainer.data.toy import digits, synthetic_images, synthetic_text

__all__ = ["BrokenSample", "Data", "Images", "Split", "Text", "load_data"]

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
    "documents": documents,
    "parquet": parquet_text,
    "synthetic": synthetic_text,
}


def load_data(settings: Settings) -> Data:
    """The data that --data names: images for classify and contrastive, text for lm and mlm. Needs no network.

    Raises SettingsError if --data-dir or a column is missing or wrong, and TrainerError where files are missing,
    damaged or laid out otherwise; each message says what was looked for, and where.
    """
    of_images = settings.task in ("classify", "contrastive")
    return _IMAGES[settings.data](settings) if of_images else _TEXT[settings.data](settings)
