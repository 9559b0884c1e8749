"""Checkpoints are recognised by their content, and where other files have the same content, by their name too."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

from gputui.runs.learned_checkpoints import is_checkpoint, written_checkpoints
from tests.tables import table

BEGUN_AT = 1_000_000.0


def archive(*members: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as file:
            for member in members:
                file.writestr(member, "x")

    return write


def content(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


TORCH = archive("archive/data.pkl", "archive/data/0")
CUT_SHORT = content(b"PK\x03\x04 and no end")
SAFETENSORS = content(b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
PICKLE = content(pickle.dumps({"a": 1}))


def save(path: Path, at: float = BEGUN_AT + 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        SAFETENSORS(path)
    elif path.suffix in (".json", ".distcp", ""):
        path.write_text("{}")
    else:
        TORCH(path)
    os.utime(path, (at, at))


@table(
    "name, write",
    [
        ("model.pt", TORCH),
        ("last.pth.tar", TORCH),
        ("pytorch_model.bin", TORCH),
        ("epoch=3-step=90.ckpt", CUT_SHORT),
        ("old.pth", content(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80")),
        ("model.safetensors", SAFETENSORS),
        ("ppo_4000_steps.zip", archive("data", "policy.pth")),
        ("best.keras", archive("config.json", "model.weights.h5")),
        ("model_30.ubj", content(b"{L\x00\x00\x00\x00\x00\x00\x00\x07learnerx")),
        ("model_30.json", content(b'{"learner":{}}')),
        ("booster.txt", content(b"tree\nversion=v4\n")),
    ],
)
def test_a_checkpoint_has_the_content_of_one(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path / name)
    assert is_checkpoint(tmp_path / name)


@table(
    "name, write",
    [
        ("model.pt", content(b"not a model")),
        ("empty.safetensors", content(b"")),
        ("data.zip", archive("train/1.png")),
        ("dump.bin", content(b"\0\0\0\0")),
        ("config.json", content(json.dumps({"model": 1}).encode())),
        ("notes.txt", content(b"trees are green\n")),
        ("logs.gz", content(gzip.compress(b"x"))),
    ],
)
def test_a_file_with_other_content_is_none(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path / name)
    assert not is_checkpoint(tmp_path / name)


@table(
    "write, checkpoint, other",
    [
        (PICKLE, "snapshot.pkl", "vocabulary.pkl"),
        (archive("w.npy"), "params_step_10.npz", "features.npz"),
        (content(b"\x89HDF\r\n\x1a\nx"), "model.weights.h5", "train.h5"),
    ],
)
def test_content_that_data_also_has_counts_under_the_name_of_a_checkpoint(
    tmp_path: Path, write: Callable[[Path], None], checkpoint: str, other: str
) -> None:
    for name in (checkpoint, other):
        write(tmp_path / name)
    assert is_checkpoint(tmp_path / checkpoint)
    assert not is_checkpoint(tmp_path / other)


@table(
    "written, expected",
    [
        (["model.pt"], {"model.pt"}),
        (["out/step_10.pt", "out/step_20.pt"], {"out/step_10.pt", "out/step_20.pt"}),
        (["out/checkpoint-500/optimizer.pt", "out/checkpoint-500/model.bin"], {"out/checkpoint-500"}),
        (["out/final/config.json", "out/final/pytorch_model.bin"], {"out/final"}),
        (["out/c/trainer_state.json", "out/c/global_step9/a.pt", "out/c/model.bin"], {"out/c"}),
        (["dcp/.metadata", "dcp/__0_0.distcp"], {"dcp"}),
        (["out/config.json", "out/ckpt_1.pt", "out/ckpt_2.pt"], {"out/ckpt_1.pt", "out/ckpt_2.pt"}),
        (
            ["out/config.json", "out/model.safetensors", "out/checkpoint-5/config.json", "out/checkpoint-5/model.bin"],
            {"out/model.safetensors", "out/checkpoint-5"},
        ),
        (["checkpoint-5/global_step5/a.pt", "checkpoint-5/model.bin"], {"checkpoint-5"}),
        (["lightning_logs/version_0/checkpoints/a.ckpt"], {"lightning_logs/version_0/checkpoints/a.ckpt"}),
        (["config.json", "model.pt"], {"model.pt"}),
        (["out/model.pt.tmp", "out/.hidden/model.pt"], set()),
    ],
)
def test_files_and_folders(tmp_path: Path, written: list[str], expected: set[str]) -> None:
    for name in written:
        save(tmp_path / name)
    checkpoints = written_checkpoints(tmp_path, BEGUN_AT, ())
    assert {os.path.relpath(file.path, tmp_path) for file in checkpoints} == expected


def test_only_what_was_written_since(tmp_path: Path) -> None:
    save(tmp_path / "pretrained.pt", BEGUN_AT - 1)
    save(tmp_path / "state/runs/other.pt")
    save(tmp_path / "out/config.json", BEGUN_AT - 1)
    save(tmp_path / "out/model.bin", BEGUN_AT + 3)
    save(tmp_path / "a.pt", BEGUN_AT + 1)
    save(tmp_path / "b.pt", BEGUN_AT + 2)
    checkpoints = written_checkpoints(tmp_path, BEGUN_AT, (tmp_path / "state",))
    assert [Path(file.path).name for file in checkpoints] == ["model.bin", "b.pt", "a.pt"]


def test_a_file_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert not is_checkpoint(tmp_path / "missing.pt")
    assert not written_checkpoints(tmp_path / "missing", 0.0, ())
