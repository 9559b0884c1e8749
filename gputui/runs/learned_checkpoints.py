"""Checkpoints that a run writes without a profile that names them, recognised by their content."""

from __future__ import annotations

import re
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path, PurePath

from gputui.core.files import open_regular
from gputui.runs.checkpoint_files import FoundCheckpoint, is_unfinished, measured
from gputui.runs.written_files import files_below

LEARNED = "auto"
"""The pattern of checkpoints that are recognised by their content."""

_ZIP_MAGIC, _HDF_MAGIC, _PICKLE_MAGIC = b"PK\x03\x04", b"\x89HDF\r\n\x1a\n", b"\x80"
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
_HEAD_BYTES = 64
# Folders in which several files are one save: by a file of its format, or by their own name.
_FOLDER_FILES = frozenset({
    "trainer_state.json", ".metadata", "config.json", "adapter_config.json", "model.safetensors.index.json",
    "pytorch_model.bin.index.json", "_CHECKPOINT_METADATA",
})  # fmt: skip
_FOLDER_NAME = re.compile(r"(?:checkpoint|ckpt|epoch|step|iter(?:ation)?|global_step)s?[-_=]?\d+", re.IGNORECASE)


def written_checkpoints(folder: Path, since: float, excluded: Collection[Path]) -> list[FoundCheckpoint]:
    """The checkpoints below a folder that were written since a time (UTC unix seconds), newest first."""
    files: dict[str, list[str]] = defaultdict(list)
    marked: set[str] = set()
    for entry in files_below(folder, excluded):
        parent = entry.path.rpartition("/")[0]
        if entry.name in _FOLDER_FILES:
            marked.add(parent)
        with suppress(OSError):
            if entry.name.endswith(_SUFFIXES) and entry.stat().st_mtime >= since and not is_unfinished(entry.name):
                files[parent].append(entry.path)
    units: set[str] = set()
    for parent, paths in files.items():
        checkpoints = [path for path in paths if is_checkpoint(Path(path))]
        is_one = parent in marked or _FOLDER_NAME.fullmatch(PurePath(parent).name) is not None
        if checkpoints and is_one and parent != str(folder):
            units.add(_outermost(parent, marked))
        else:
            units.update(checkpoints)
    found = [file for path in units if (file := measured(Path(path))) is not None]
    return sorted(found, key=lambda file: (file.modified_ns, file.path), reverse=True)


def _outermost(folder: str, marked: Iterable[str]) -> str:
    """The folder that a save belongs to: DeepSpeed and PEFT put folders of their own into that of the trainer."""
    above = [each for each in marked if folder.startswith(f"{each}/")]
    return min(above, key=len, default=folder)


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
