"""Which checkpoints are whole."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gputui.recovery.checkpoints import look_in, measured, validate
from tests.texts import mentions


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, data in (members or {"data.pkl": b"pickle", "weights": os.urandom(2000)}).items():
            file.writestr(f"job/{name}", data)
    return buffer.getvalue()


def safetensors(data: bytes = bytes(40)) -> bytes:
    header = json.dumps(
        {"__metadata__": {"step": "4"}, "w": {"dtype": "F32", "shape": [10], "data_offsets": [0, len(data)]}}
    )
    return struct.pack("<Q", len(header)) + header.encode() + data


def write(path: Path, data: bytes, *, hashed: bool = False) -> Path:
    path.write_bytes(data)
    if hashed:
        digest = hashlib.sha256(data).hexdigest()
        path.with_name(path.name + ".sha256").write_text(f"{digest}  {path.name}\n")
    return path


# --- one file ---------------------------------------------------------------------------------------------------------


def test_a_file_that_matches_its_hash(tmp_path: Path) -> None:
    info = validate(write(tmp_path / "step_00000040.pt", b"any bytes at all", hashed=True))
    assert (info.valid, info.step, info.why, info.size_bytes) == (True, 40, "matches its SHA-256", 16)
    assert info.modified_at is not None


def test_every_flipped_byte_of_a_hashed_file_is_noticed(tmp_path: Path) -> None:
    good = archive()
    path = write(tmp_path / "step_1.pt", good, hashed=True)
    for place in range(0, len(good), 7):
        data = bytearray(good)
        data[place] ^= 1 << (place % 8)
        path.write_bytes(data)
        info = validate(path)
        assert not info.valid and mentions(info.why, "not match", "step_1.pt.sha256")


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    for name, good in (("a.pt", archive()), ("b.safetensors", safetensors())):
        for length in range(0, len(good), 11):
            assert not validate(write(tmp_path / name, good[:length])).valid
        assert validate(write(tmp_path / name, good)).valid


def test_an_archive_is_checked_by_its_crcs(tmp_path: Path) -> None:
    info = validate(write(tmp_path / "a.pt", archive()))
    assert info.valid and mentions(info.why, "CRC", "2 members")


def contents(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {member.filename: file.read(member) for member in file.infolist()}


def test_an_archive_that_passes_holds_what_was_written(tmp_path: Path) -> None:
    """Some bytes of a ZIP mean nothing (times, paddings): flipping those may pass, flipping data never."""
    good = archive(a=b"some weights", b=bytes(range(200)), c=b"x")
    refused = 0
    for place in range(len(good)):
        data = bytearray(good)
        data[place] ^= 0x55
        if validate(write(tmp_path / "a.pt", bytes(data))).valid:
            assert contents(bytes(data)) == contents(good)
        else:
            refused += 1
    assert refused > len(good) / 2


def test_what_passes_is_what_pytorch_loads(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    saved = tmp_path / "good.pt"
    torch.save({"w": torch.arange(300.0), "step": 40, "more": {"b": torch.ones(10, dtype=torch.int64)}}, saved)
    good, wanted = saved.read_bytes(), torch.load(saved)
    assert validate(saved).valid
    passed = 0
    for place in range(0, len(good), 2):
        data = bytearray(good)
        data[place] ^= 0x55
        path = write(tmp_path / "a.pt", bytes(data))
        if validate(path).valid:
            passed += 1
            state = torch.load(path)
            assert torch.equal(state["w"], wanted["w"]) and torch.equal(state["more"]["b"], wanted["more"]["b"])
            assert state["step"] == 40
    assert passed  # paddings


def test_an_archive_with_64_bit_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files above 4 GiB have these; here the limit is lowered instead."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    good = archive(weights=bytes(3000))
    assert b"PK\x06\x06" in good
    assert validate(write(tmp_path / "a.pt", good)).valid
    place = good.index(b"PK\x06\x06") + 32
    broken = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
    assert not validate(write(tmp_path / "a.pt", broken)).valid


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.pt", b"", "is empty"),
        ("a.pt", bytes(5000), "has no .sha256 file beside it and a format that cannot be checked"),
        ("a.pt", b"\x80\x02}q\x00.", "has no .sha256 file beside it and a format that cannot be checked"),
        ("a.pt", b"PK\x03\x04 and nothing more", "is damaged: "),
        ("a.safetensors", b"short", "is cut short: "),
        ("a.safetensors", struct.pack("<Q", 1 << 60) + b"{}", "is cut short: "),
        ("a.safetensors", struct.pack("<Q", 4) + b"[[[[", "is damaged: its header cannot be read"),
        ("a.safetensors", safetensors() + b"more", "is damaged: its header describes"),
        ("a.safetensors", struct.pack("<Q", 2) + b"[]", "is damaged: its header cannot be read"),
    ],
)
def test_what_is_refused_says_why(name: str, data: bytes, why: str, tmp_path: Path) -> None:
    info = validate(write(tmp_path / name, data))
    assert not info.valid and info.why.startswith(why)


def test_safetensors_need_offsets_without_gaps(tmp_path: Path) -> None:
    four = {"dtype": "F32", "shape": [1]}
    header = json.dumps({"a": {**four, "data_offsets": [0, 4]}, "b": {**four, "data_offsets": [8, 12]}}).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(12)
    found = validate(write(tmp_path / "a.safetensors", data))
    assert not (found.valid or found.is_unreadable) and mentions(found.why, "damaged", "header")


@pytest.mark.parametrize("text", ["", "not a hash", "ab12  a.pt"])
def test_a_hash_file_that_holds_none_makes_the_checkpoint_doubtful(text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt", archive())
    (tmp_path / "a.pt.sha256").write_text(text)
    found = validate(path)
    assert not (found.valid or found.is_unknown) and mentions(found.why, ".sha256", "no SHA-256")


@pytest.mark.parametrize("form", ["{0}  a.pt\n", "{0} *a.pt\n", "{0}\n", "{0}", "{1}  a.pt\n"])
def test_forms_of_a_hash_file(form: str, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"data").hexdigest()
    path = write(tmp_path / "a.pt", b"data")
    (tmp_path / "a.pt.sha256").write_text(form.format(digest, digest.upper()))
    assert validate(path).valid


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


def test_every_shard_in_the_hash_file_is_checked(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    found = validate(path)
    assert found.valid and mentions(found.why, "SHA-256", "2 parts")
    shard = tmp_path / "step_00000040.shards" / "step_00000040_rank_1_of_2.pt"
    whole = shard.read_bytes()
    flip(shard)
    info = validate(path)
    assert not info.valid and mentions(info.why, "not match", f"step_00000040.shards/{shard.name}")
    shard.unlink()
    assert validate(path).why == f"lacks its part step_00000040.shards/{shard.name}"
    shard.write_bytes(whole)
    assert validate(path).valid


@pytest.mark.parametrize("name", ["../other.pt", "/etc/passwd", "step.shards/../../other.pt"])
def test_a_part_outside_of_the_checkpoints_folder_is_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    other = write(tmp_path / "other.pt", b"data")
    path = write(folder / "step_1.pt", b"data", hashed=True)
    beside = folder / "step_1.pt.sha256"
    beside.write_text(beside.read_text() + f"{hashlib.sha256(other.read_bytes()).hexdigest()}  {name}\n")
    found = validate(path)
    assert not found.valid and mentions(found.why, name, ".sha256", "outside")


def test_a_link_that_leads_out_of_the_checkpoints_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    write(tmp_path / "other.pt", b"data")
    path = write(folder / "step_1.pt", b"data", hashed=True)
    (folder / "shards").symlink_to(tmp_path)
    beside = folder / "step_1.pt.sha256"
    beside.write_text(beside.read_text() + f"{hashlib.sha256(b'data').hexdigest()}  shards/other.pt\n")
    found = validate(path)
    assert not found.valid and mentions(found.why, "outside")


def test_both_hashes_count_while_a_checkpoint_is_being_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "best.pt", b"old")
    digests = [hashlib.sha256(data).hexdigest() for data in (b"new", b"old")]
    (tmp_path / "best.pt.sha256").write_text("".join(f"{digest}  best.pt\n" for digest in digests))
    assert validate(path).valid
    assert validate(write(path, b"new")).valid
    assert not validate(write(path, b"neither")).valid


def test_a_renamed_checkpoint_with_its_hash_file_is_the_same(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    moved = path.rename(tmp_path / "keep.pt")
    (tmp_path / "step_00000040.pt.sha256").rename(tmp_path / "keep.pt.sha256")
    found = validate(moved)
    assert found.valid and mentions(found.why, "SHA-256", "2 parts")


def test_a_damaged_line_makes_the_checkpoint_doubtful(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    beside = tmp_path / "step_00000040.pt.sha256"
    beside.write_text(beside.read_text()[:-80])
    found = validate(path)
    assert not (found.valid or found.is_unknown) and mentions(found.why, ".sha256", "damaged")


def test_a_compressed_checkpoint_is_checked_by_its_crc(tmp_path: Path) -> None:
    contents = archive()
    good = gzip.compress(contents)
    path = write(tmp_path / "step_00000040.pt.gz", good)
    info = validate(path)
    assert (info.valid, info.step) == (True, 40) and mentions(info.why, "CRC", "gzip")
    for length in range(2, len(good), 13):
        assert not validate(write(path, good[:length])).valid
    harmless = 0
    for place in range(10, len(good), 7):
        data = bytearray(good)
        data[place] ^= 0x10
        # A few bits of a deflate stream mean nothing (unused codes, padding): flipped, they change no content.
        if validate(write(path, bytes(data))).valid:
            assert gzip.decompress(bytes(data)) == contents
            harmless += 1
    assert harmless < 5
    assert not validate(write(path, good + b"more")).valid
    assert not validate(write(path, gzip.compress(b""))).valid


def test_a_shape_must_fit_its_bytes(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [11], "data_offsets": [0, 40]}}).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(40)
    found = validate(write(tmp_path / "a.safetensors", data))
    assert not (found.valid or found.is_unreadable) and mentions(found.why, "damaged", "header")


def test_things_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pt")
    assert not validate(tmp_path / "a.pt").valid
    gone = validate(tmp_path / "gone.pt")
    assert gone.is_unreadable and gone.is_missing and not gone.valid
    (tmp_path / "loop").symlink_to("loop")
    assert not validate(tmp_path / "loop").valid


def test_large_files_are_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with path.open("wb") as file:
        file.truncate(300 << 20)
    digest = hashlib.sha256()
    for _ in range(300):
        digest.update(bytes(1 << 20))
    (tmp_path / "a.pt.sha256").write_text(digest.hexdigest())
    tracemalloc.start()
    try:
        assert validate(path).valid
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


# --- folders ----------------------------------------------------------------------------------------------------------


def folder(path: Path, **files: bytes) -> Path:
    path.mkdir()
    for name, data in files.items():
        (path / name.replace("__", ".")).write_bytes(data)
    return path


def test_a_folder_is_valid_when_all_its_weights_are(tmp_path: Path) -> None:
    path = folder(
        tmp_path / "checkpoint-500", model__safetensors=safetensors(), optimizer__pt=archive(), state__json=b"{}"
    )
    info = validate(path)
    assert info.valid and info.step == 500 and mentions(info.why, "3 files")
    (path / "optimizer.pt").write_bytes(archive()[:-5])
    assert not validate(path).valid and validate(path).why.startswith("optimizer.pt is damaged")


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "is an empty folder"),
        ({"model__safetensors": b""}, "model.safetensors is empty"),
        ({"a__pt": archive(), "b__tmp": b"x"}, "is still being written, or its writing was cut short: it holds b.tmp"),
        ({"__0_0__distcp": b"x"}, "is a distributed checkpoint without its .metadata"),
        ({"w__distcp": b"x"}, "is a distributed checkpoint without its .metadata"),
        ({"w__distcp": b"", "__metadata": b"x"}, "w.distcp is empty"),
    ],
)
def test_folders_that_are_refused(files: dict[str, bytes], why: str, tmp_path: Path) -> None:
    info = validate(folder(tmp_path / "checkpoint-1", **files))
    assert not info.valid and info.why.startswith(why)


def test_a_distributed_checkpoint_with_its_index(tmp_path: Path) -> None:
    assert validate(folder(tmp_path / "step-7", w__distcp=b"x", __metadata=b"x")).valid


def test_a_distributed_checkpoint_needs_every_file_that_its_index_names(tmp_path: Path) -> None:
    class Danger:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "unpickled"),)

    index = pickle.dumps({"files": ["__0_0.distcp", "__1_0.distcp"], "danger": Danger()})
    path = folder(tmp_path / "step-7", __metadata=index)
    (path / "__0_0.distcp").write_bytes(b"x")
    found = validate(path)
    assert not found.valid and mentions(found.why, "__1_0.distcp", ".metadata")
    (path / "__1_0.distcp").write_bytes(b"x")
    assert validate(path).valid
    assert not (tmp_path / "unpickled").exists()


def test_what_pytorch_saves_distributed_is_whole_until_a_file_is_gone(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    saving = pytest.importorskip("torch.distributed.checkpoint")
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
    found = validate(path)
    assert not (found.valid or found.is_unreadable) and mentions(found.why, "model.safetensors.index.json")


# --- many -------------------------------------------------------------------------------------------------------------


def names(directory: Path, pattern: str) -> list[str]:
    return [Path(one.path).name for one in look_in(directory, pattern)]


def test_the_newest_is_what_was_written_last_whatever_it_is_called(tmp_path: Path) -> None:
    for name, at in (("step_9.pt", 4e8), ("epoch=9-val_loss=0.12.pt", 3e8), ("step_100.pt", 2e8), ("last.pt", 1e8)):
        os.utime(write(tmp_path / name, archive()), (at, at))
    assert names(tmp_path, "*.pt") == ["step_9.pt", "epoch=9-val_loss=0.12.pt", "step_100.pt", "last.pt"]


def test_a_folder_of_unknown_files_is_as_new_as_the_newest_of_them(tmp_path: Path) -> None:
    path = folder(tmp_path / "checkpoint-1", manifest__ocdbt=b"1234", state__json=b"{}")
    for entry, at in ((path / "manifest.ocdbt", 3e9), (path / "state.json", 1e8), (path, 2e8)):
        os.utime(entry, (at, at))
    found = measured(path)
    assert found is not None and (found.modified_ns, found.size_bytes) == (int(3e18), 6)
    assert measured(tmp_path / "gone") is None


def test_a_folder_is_as_old_as_its_weights_whatever_an_evaluation_adds_to_it(tmp_path: Path) -> None:
    path = folder(tmp_path / "checkpoint-200", model__safetensors=b"weights")
    os.utime(path / "model.safetensors", (200, 200))
    before = measured(path)
    (path / "eval_results.json").write_text("{}")
    os.utime(path / "eval_results.json", (4e9, 4e9))
    after = measured(path)
    assert before is not None and after is not None
    assert after.stamp == before.stamp == (200 * 10**9, 7)
    assert after.with_all_files == (4 * 10**18, 9)


def test_unfinished_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    for name in (
        ".step_1.pt.tmp",
        "step_2.pt.tmp",
        "step_3.pt.part",
        "step_4.pt.stale",
        "step_5.pt.sha256",
        "step_6.pt~",
        "step_9.pt.tmp.1234",
        "step_10.pt.partial-12",
        "step_11-tmp.pt",
    ):
        write(tmp_path / name, archive())
    os.mkfifo(tmp_path / "step_7.pt")
    (tmp_path / "step_8.pt").symlink_to("nowhere")
    write(tmp_path / "step_1.pt", archive())
    assert names(tmp_path, "step_*") == ["step_1.pt"]


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        ("checkpoint-40", True),
        ("checkpoint-temp-0.7", True),
        ("checkpoint-40-part-1", True),
        ("checkpoint-40-tmp", False),
        ("checkpoint-40_tmp", False),
        ("tmp-checkpoint-40", False),
        ("checkpoint-40.partial-123", False),
        ("checkpoint-40.orbax-checkpoint-tmp-17", False),
        ("tmpk3_9ab2x", False),
    ],
)
def test_folders_that_are_being_written_are_known_by_their_names(tmp_path: Path, name: str, is_found: bool) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    folder(checkpoints / name, model__pt=archive())
    assert bool(look_in(checkpoints, "*")) is is_found
    assert bool(look_in(checkpoints, "*/*.pt")) is is_found


@pytest.mark.parametrize("pattern", ["", "/etc/*", "**/x/**", "[", "a/../../*"])
def test_odd_patterns_find_nothing(pattern: str, tmp_path: Path) -> None:
    assert look_in(tmp_path, pattern) == []
    assert look_in(tmp_path / "gone", pattern or "*") == []


def test_patterns_may_lead_into_folders(tmp_path: Path) -> None:
    for step in (10, 5):
        folder(tmp_path / f"global_step{step}", model__pt=archive())
    found = [Path(one.path) for one in look_in(tmp_path, "*/model.pt")]
    assert sorted(validate(path).step or 0 for path in found) == [5, 10]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, empty, flip])
@pytest.mark.parametrize("hashed", [True, False])
def test_a_damaged_one_is_noticed(damage: Callable[[Path], None], hashed: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "step_30.pt", archive(), hashed=hashed)
    damage(path)
    info = validate(path)
    assert not (info.valid or info.is_unknown or info.is_unreadable)


def test_what_cannot_be_checked_and_what_cannot_be_read_is_told_from_damage(tmp_path: Path) -> None:
    assert validate(write(tmp_path / "step_1.raw", b"some format of its own")).is_unknown
    assert validate(folder(tmp_path / "step_2", weights__bin=b"some format of its own")).is_unknown
    assert validate(tmp_path / "gone.pt").is_missing


def test_a_link_to_another_one_is_none_of_its_own(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere.pt", archive())
    saved = tmp_path / "saved"
    saved.mkdir()
    folder(saved / "checkpoint-1", model__pt=archive())
    (saved / "latest").symlink_to("checkpoint-1")
    (saved / "moved.pt").symlink_to(elsewhere)
    assert sorted(names(saved, "*")) == ["checkpoint-1", "moved.pt"]


def test_of_very_many_the_newest_count(tmp_path: Path) -> None:
    for step in range(30):
        os.utime(write(tmp_path / f"step_{step}.pt", b""), (1e9 - step, 1e9 - step))
    assert [Path(one.path).name for one in look_in(tmp_path, "*.pt", 2)] == ["step_0.pt", "step_1.pt"]


def test_a_folder_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        look_in(loop, "*.pt")


def test_a_name_that_cannot_be_stored_is_passed_over(tmp_path: Path) -> None:
    for name in (b"step_10.pt", b"step_\xff20.pt"):
        with zipfile.ZipFile(os.fsdecode(os.fsencode(tmp_path) + b"/" + name), "w") as archive:
            archive.writestr("a", "b")
    assert names(tmp_path, "step_*.pt") == ["step_10.pt"]
