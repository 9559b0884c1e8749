"""Validation of checkpoints."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import pickle
import random
import struct
import zipfile
from pathlib import Path

import pytest

from gputui.runs.checkpoint_files import files_of, list_checkpoints
from gputui.runs.checkpoint_formats import validate
from tests.tables import table
from tests.texts import mentions


def archive(method: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in (members or {"data.pkl": b"pickle", "weights": random.Random(0).randbytes(2000)}).items():
            file.writestr(f"job/{name}", data)
    return buffer.getvalue()


def safetensors(data: bytes = bytes(40)) -> bytes:
    header = json.dumps(
        {"__metadata__": {"step": "4"}, "w": {"dtype": "F32", "shape": [10], "data_offsets": [0, len(data)]}}
    )
    return struct.pack("<Q", len(header)) + header.encode() + data


def headed(offsets: dict[str, list[int]]) -> bytes:
    """Numbers of four bytes each."""
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": at} for name, at in offsets.items()})
    return struct.pack("<Q", len(header)) + header.encode() + bytes(12)


def write(path: Path, data: bytes, *, hashed: bool = False) -> Path:
    path.write_bytes(data)
    if hashed:
        digest = hashlib.sha256(data).hexdigest()
        path.with_name(path.name + ".sha256").write_text(f"{digest}  {path.name}\n")
    return path


def sharded(tmp_path: Path) -> Path:
    """A checkpoint whose hash file lists its shards, as the bundled trainer writes it."""
    path = write(tmp_path / "step_00000040.pt", archive())
    (tmp_path / "step_00000040.shards").mkdir()
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"]
    for rank in range(2):
        name = f"step_00000040.shards/step_00000040_rank_{rank}_of_2.pt"
        shard = write(tmp_path / name, archive())
        lines.append(f"{hashlib.sha256(shard.read_bytes()).hexdigest()}  {name}\n")
    (tmp_path / "step_00000040.pt.sha256").write_text("".join(lines))
    return path


def folder(path: Path, **files: bytes) -> Path:
    path.mkdir()
    for name, data in files.items():
        (path / name.replace("__", ".")).write_bytes(data)
    return path


def names(directory: Path, pattern: str) -> list[str]:
    return [Path(checkpoint.path).name for checkpoint in list_checkpoints(directory, pattern)]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# --- one file ---------------------------------------------------------------------------------------------------------


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    for name, good in (("a.pt", archive()), ("b.safetensors", safetensors())):
        for length in range(0, len(good), 11):
            assert not validate(write(tmp_path / name, good[:length])).valid
        assert validate(write(tmp_path / name, good)).valid


def test_what_passes_is_never_loaded_as_other_weights(tmp_path: Path) -> None:
    import torch

    saved = tmp_path / "good.pt"
    torch.save({"w": torch.arange(300.0), "step": 40, "more": {"b": torch.ones(10, dtype=torch.int64)}}, saved)
    good = saved.read_bytes()
    expected = torch.load(saved)
    assert validate(saved).valid
    passed = 0
    for place in range(0, len(good), 3):
        data = bytearray(good)
        data[place] ^= 0x55
        path = write(tmp_path / "a.pt", bytes(data))
        if validate(path).valid:
            passed += 1
            state = expected
            with contextlib.suppress(Exception):
                state = torch.load(path)
            assert torch.equal(state["w"], expected["w"])
            assert torch.equal(state["more"]["b"], expected["more"]["b"])
            assert state["step"] == 40
    assert 0 < passed < len(good) // 9  # paddings, and headers that nothing compares


@table("name, data, why", [
    ("a.pt", b"", "is empty"),
    ("a.pt", bytes(5000), "has no .sha256 file beside it and a format that cannot be checked"),
    ("a.pt", b"\x80\x02}q\x00.", "has no .sha256 file beside it and a format that cannot be checked"),
    ("a.pt", b"PK\x03\x04 and nothing more", "is damaged: "), ("a.safetensors", b"short", "is cut short: "),
    ("a.safetensors", struct.pack("<Q", 1 << 60) + b"{}", "is cut short: "),
    ("a.safetensors", struct.pack("<Q", 4) + b"[[[[", "is damaged: its header cannot be read"),
    ("a.safetensors", safetensors() + b"more", "is damaged: its header describes"),
    ("a.safetensors", struct.pack("<Q", 2) + b"[]", "is damaged: its header cannot be read"),
    ("a.safetensors", headed({"a": [0, 4], "b": [8, 12]}), "is damaged: its header"),
])  # fmt: skip
def test_what_is_refused_says_why(name: str, data: bytes, why: str, tmp_path: Path) -> None:
    info = validate(write(tmp_path / name, data))
    assert not info.valid
    assert info.why.startswith(why)


def test_every_shard_in_the_hash_file_is_checked(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    cut_info = validate(path)
    assert cut_info.valid
    assert mentions(cut_info.why, "SHA-256", "2 parts")
    shard = tmp_path / "step_00000040.shards" / "step_00000040_rank_1_of_2.pt"
    whole = shard.read_bytes()
    flip(shard)
    info = validate(path)
    assert not info.valid
    assert mentions(info.why, "not match", f"step_00000040.shards/{shard.name}")
    shard.unlink()
    assert validate(path).why == f"lacks its part step_00000040.shards/{shard.name}"
    shard.write_bytes(whole)
    assert validate(path).valid


def test_both_hashes_count_while_a_checkpoint_is_being_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "best.pt", b"old")
    digests = [hashlib.sha256(data).hexdigest() for data in (b"new", b"old")]
    (tmp_path / "best.pt.sha256").write_text("".join(f"{digest}  best.pt\n" for digest in digests))
    assert validate(path).valid
    assert validate(write(path, b"new")).valid
    assert not validate(write(path, b"neither")).valid


def test_a_compressed_checkpoint_is_checked_by_its_crc(tmp_path: Path) -> None:
    good = gzip.compress(archive())
    path = write(tmp_path / "step_00000040.pt.gz", good)
    info = validate(path)
    assert (info.valid, info.step) == (True, 40)
    assert mentions(info.why, "CRC", "gzip")
    for length in range(2, len(good), 13):
        assert not validate(write(path, good[:length])).valid


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_is_valid_when_all_its_weights_are(tmp_path: Path) -> None:
    path = folder(
        tmp_path / "checkpoint-500", model__safetensors=safetensors(), optimizer__pt=archive(), state__json=b"{}"
    )
    info = validate(path)
    assert info.valid
    assert info.step == 500
    assert mentions(info.why, "3 files")
    (path / "optimizer.pt").write_bytes(archive()[:-5])
    assert not validate(path).valid
    assert validate(path).why.startswith("optimizer.pt is damaged")


@table("files, why", [
    ({}, "is an empty folder"), ({"model__safetensors": b""}, "model.safetensors is empty"),
    ({"a__pt": archive(), "b__tmp": b"x"}, "is still being written, or its writing was cut short: it holds b.tmp"),
    ({"__0_0__distcp": b"x"}, "is a distributed checkpoint without its .metadata"),
    ({"w__distcp": b"x"}, "is a distributed checkpoint without its .metadata"),
    ({"w__distcp": b"", "__metadata": b"x"}, "w.distcp is empty"),
])  # fmt: skip
def test_folders_that_are_refused(files: dict[str, bytes], why: str, tmp_path: Path) -> None:
    info = validate(folder(tmp_path / "checkpoint-1", **files))
    assert not info.valid
    assert info.why.startswith(why)


def test_a_distributed_checkpoint_needs_every_file_that_its_index_names(tmp_path: Path) -> None:
    class Danger:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "unpickled"),)

    index = pickle.dumps({"files": ["__0_0.distcp", "__1_0.distcp"], "danger": Danger()})
    path = folder(tmp_path / "step-7", __metadata=index)
    (path / "__0_0.distcp").write_bytes(b"x")
    info = validate(path)
    assert not info.valid
    assert mentions(info.why, "__1_0.distcp", ".metadata")
    (path / "__1_0.distcp").write_bytes(b"x")
    assert validate(path).valid
    assert not (tmp_path / "unpickled").exists()


def test_what_pytorch_saves_distributed_is_whole_until_a_file_is_gone(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as saving

    path = tmp_path / "step-7"
    saving.save({"w": torch.arange(300.0)}, checkpoint_id=str(path), no_dist=True)
    assert validate(path).valid
    next(path.glob("*.distcp")).unlink()
    assert not validate(path).valid


def test_a_model_in_parts_needs_every_part(tmp_path: Path) -> None:
    names = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    path = folder(tmp_path / "checkpoint-9")
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict(zip("ab", names, strict=True))}))
    write(path / names[0], safetensors())
    assert validate(path).why == f"lacks {names[1]}, which model.safetensors.index.json names"
    write(path / names[1], safetensors())
    assert validate(path).valid
    index.write_text("{")
    info = validate(path)
    assert not info.valid
    assert not info.is_unreadable
    assert mentions(info.why, "model.safetensors.index.json")


# --- many -------------------------------------------------------------------------------------------------------------


def test_unfinished_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    for name in (".step_1.pt.tmp", "step_3.pt.part", "step_5.pt.sha256", "step_9.pt.tmp.1234", "step_11-tmp.pt"):
        write(tmp_path / name, archive())
    write(tmp_path / "step_1.pt", archive())
    assert names(tmp_path, "step_*") == ["step_1.pt"]


@table("name, is_found", [
    ("checkpoint-40", True), ("checkpoint-temp-0.7", True), ("checkpoint-40-part-1", True),
    ("checkpoint-40-tmp", False), ("checkpoint-40_tmp", False), ("tmp-checkpoint-40", False),
    ("checkpoint-40.partial-123", False), ("checkpoint-40.orbax-checkpoint-tmp-17", False), ("tmpk3_9ab2x", False),
])  # fmt: skip
def test_folders_that_are_being_written_are_known_by_their_names(tmp_path: Path, name: str, is_found: bool) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    folder(checkpoints / name, model__pt=archive())
    assert bool(list_checkpoints(checkpoints, "*")) is is_found
    assert bool(list_checkpoints(checkpoints, "*/*.pt")) is is_found


def test_what_cannot_be_checked_and_what_cannot_be_read_is_told_from_damage(tmp_path: Path) -> None:
    for hashed in (False, True):
        path = write(tmp_path / "step_30.pt", archive(), hashed=hashed)
        good = path.read_bytes()
        flip(path)
        for damaged in (good[:-9], b"", path.read_bytes()):
            info = validate(write(path, damaged))
            assert not info.valid
            assert not info.is_unknown
            assert not info.is_unreadable
    # A mark of a folder, the offset of the directory, a block, the properties of a stream.
    places = {(0, -35): 16, (0, -4): 1, (zipfile.ZIP_BZIP2, 39): 1, (zipfile.ZIP_LZMA, 39): 188}
    for (method, place), bits in places.items():
        data = bytearray(archive(method, w=bytes(2000)))
        data[place] ^= bits
        info = validate(write(tmp_path / "a.pt", bytes(data)))
        assert not info.valid, method
        assert not info.is_unknown, method
        assert not info.is_unreadable, method
    assert validate(write(tmp_path / "nameless.pt", archive().replace(b"job/", b"\0ob/"))).valid
    assert validate(write(tmp_path / "step_1.raw", b"some format of its own")).is_unknown
    assert validate(folder(tmp_path / "step_2", weights__bin=b"some format of its own")).is_unknown
    assert validate(tmp_path / "gone.pt").is_missing


def test_a_folder_that_cannot_be_seen_whole_has_no_content(tmp_path: Path) -> None:
    """Else its unseen files would count as deleted, and the rest as a cut checkpoint."""
    with pytest.raises(OSError):
        files_of(tmp_path / "gone")
