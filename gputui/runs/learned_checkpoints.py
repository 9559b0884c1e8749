"""Checkpoints that a run writes without a profile that names them, recognised by their content."""

from __future__ import annotations

import re
import zipfile
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePath

from gputui.core.files import open_regular
from gputui.runs.checkpoint_files import FoundCheckpoint, is_unfinished, measured
from gputui.runs.written_files import files_below

LEARNED = "auto"
"""The pattern of checkpoints that are recognised by their content."""

_ZIP_MAGIC = b"PK\x03\x04"
_HDF_MAGIC = b"\x89HDF\r\n\x1a\n"
_PICKLE_MAGIC = b"\x80"
# torch.save before 1.6, and with its old format: a pickle that begins with this number.
_OLD_TORCH_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_ZIP_SUFFIXES = (".pt", ".pth", ".ckpt", ".tar", ".bin", ".zip", ".keras", ".npz", ".model")
_SUFFIXES = (
    *_ZIP_SUFFIXES, ".safetensors", ".h5", ".hdf5", ".pkl", ".pickle", ".joblib", ".msgpack", ".ubj", ".cbm", ".json",
    ".txt", ".distcp",
)  # fmt: skip
# What the members of a checkpoint's archive are called, by library: PyTorch, Keras, Stable-Baselines3.
_ZIP_MEMBERS = re.compile(r"(?:^|/)data\.pkl$|^model\.weights\.h5$|^policy\.pth$")
# Formats that also hold data: only under such a name are they checkpoints.
_NAMED = re.compile(r"model|weights|ckpt|checkpoint|state|snapshot|epoch|best|last|step|iter", re.IGNORECASE)
_BOOSTER_MARKS = (b"tree\n", b"CBM1", b'{"learner"', b"{L\x00\x00\x00\x00\x00\x00\x00\x07learner")
_HEAD_BYTES = 64  # holds the magic number of each format
# Folders in which several files are one save: by a file of its format, or by their own name.
_FOLDER_FILES = frozenset({
    "trainer_state.json", ".metadata", "config.json", "adapter_config.json", "model.safetensors.index.json",
    "pytorch_model.bin.index.json", "_CHECKPOINT_METADATA",
})  # fmt: skip
_FOLDER_NAME = re.compile(r"(?:checkpoint|ckpt|epoch|step|iter(?:ation)?|global_step)s?[-_=]?\d+", re.IGNORECASE)
# The files of such a folder. One with others holds several saves.
_FOLDER_WEIGHTS = re.compile(
    r"(?:\w+_)?model(?:[-_]\d+[-_]of[-_]\d+)?\.(?:bin|safetensors|h5|msgpack)|consolidated.*|.+\.distcp"
    r"|(?:optimizer|scheduler|scaler|training_args|rng_state\w*)\.(?:pt|pth|bin)",
)


def written_checkpoints(folder: Path, since: float, excluded: Collection[Path]) -> list[FoundCheckpoint]:
    """The checkpoints below a folder that were written since a time (UTC unix seconds), newest first."""
    files: dict[str, list[str]] = defaultdict(list)
    marked: set[str] = set()
    for entry in files_below(folder, excluded):
        parent = entry.path.rpartition("/")[0]
        with suppress(OSError):
            if is_unfinished(entry.name) or entry.stat().st_mtime < since:
                continue
            if entry.name in _FOLDER_FILES:
                marked.add(parent)
            if entry.name.endswith(_SUFFIXES) and is_checkpoint(Path(entry.path)):
                files[parent].append(entry.path)
    whole = {
        parent
        for parent, paths in files.items()
        if parent in marked and all(_FOLDER_WEIGHTS.fullmatch(PurePath(path).name) for path in paths)
    }
    saves = {parent: _folder_of_save(PurePath(parent), folder, whole) for parent in files}
    units: set[str] = set()
    for parent, save in saves.items():
        # The folder above several saves, such as that of the trainer's output, is none.
        holds_saves = any(
            other_save != save and other_save.startswith(f"{save}/") for other_save in saves.values() if other_save
        )
        if save is None or holds_saves:
            units.update(files[parent])
        else:
            units.add(save)
    measured_files = [file for path in units if (file := measured(Path(path))) is not None]
    return sorted(measured_files, key=lambda file: (file.modified_ns, file.path), reverse=True)


def _folder_of_save(parent: PurePath, root: Path, whole: Collection[str]) -> str | None:
    """The folder below ``root`` that is one save with all in it, at or above ``parent``; None if each file is one.

    It is known by its number, or as one of the ``whole`` folders.
    """
    above = [folder for folder in (parent, *parent.parents) if folder != root and folder.is_relative_to(root)]
    unnumbered = [folder for folder in above if str(folder) in whole]
    numbered = [folder for folder in above if _FOLDER_NAME.fullmatch(folder.name)]
    # DeepSpeed puts a numbered folder of its own into that of the trainer.
    is_of_trainer = bool(unnumbered) and all(folder.name.startswith("global_step") for folder in numbered)
    if numbered and not is_of_trainer:
        return str(numbered[-1])
    if unnumbered:
        return str(unnumbered[-1])
    return None


def is_checkpoint(path: Path) -> bool:
    """Return whether a file's content is that of a checkpoint, as far as its first bytes and its name tell."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
            if head.startswith(_ZIP_MAGIC):
                return path.suffix in _ZIP_SUFFIXES and _is_archive(path)
    except OSError:
        return False
    if head.startswith((_OLD_TORCH_MAGIC, *_BOOSTER_MARKS)):
        return True
    if path.suffix in (".safetensors", ".distcp", ".msgpack"):
        return bool(head)
    is_data_format = head.startswith((_HDF_MAGIC, _PICKLE_MAGIC)) or path.name.endswith(".h5")
    return is_data_format and _NAMED.search(path.name) is not None


def _is_archive(path: Path) -> bool:
    """Return whether a ZIP file is a checkpoint. One whose end is missing was cut short, or is being written."""
    if path.suffix == ".npz":
        return _NAMED.search(path.name) is not None
    try:
        with zipfile.ZipFile(path) as archive:
            return any(_ZIP_MEMBERS.search(name) for name in archive.namelist())
    except (OSError, zipfile.BadZipFile, ValueError):
        return path.suffix in (".pt", ".pth", ".ckpt")
