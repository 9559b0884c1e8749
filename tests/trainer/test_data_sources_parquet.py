"""Parquet: layouts, columns, row groups, and damage; with real ZSTD files."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from tests.trainer.ranks import Ranks
from tests.trainer.running import train_on
from tests.trainer.splits import as_they_are as unchanged
from tests.trainer.test_data_sources import everything, images, text
from tests.trainer.test_loop import same
from trainer.checkpoints import load
from trainer.config import Settings
from trainer.data import BrokenSample, ReadsAhead, Split
from trainer.data.deals import redealt
from trainer.data.parquet import RowGroups, RowSpan, layout
from trainer.data.parquet_text import TokenColumn
from trainer.data.reading import Reader, Request
from trainer.data.sampler import micro_start, order_for
from trainer.data.samples import Samples
from trainer.data.token_counts import COUNTS_FILE
from trainer.errors import SettingsError, TrainerError


def png(value: int, size: int = 4) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (size, size), (value, 0, 0)).save(content, "PNG")
    return content.getvalue()


def pictures(numbers: Sequence[int], **columns: Any) -> pa.Table:
    """Row k has an image with k in red, and class k % 4; as Hugging Face's `datasets` writes them."""
    stored = [{"bytes": png(number), "path": f"{number}.png"} for number in numbers]
    return pa.table({"image": stored, "label": [number % 4 for number in numbers], **columns})


def write(path: Path, table: pa.Table, rows: int, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, compression="zstd", row_group_size=rows, **options)


def from_images(folder: Path, **values: Any) -> Any:
    return images(data="parquet", data_dir=folder, **values)


def from_text(folder: Path, **values: Any) -> Any:
    return text(data="parquet", data_dir=folder, **{"context": 8, **values})


def reds(split: Split) -> list[int]:
    return [int(red) for red in everything(split)["image"][:, 0, 0, 0]]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """40 training images in two files of two row groups each, 8 held-out ones in a third."""
    write(tmp_path / "train-00000-of-00002.parquet", pictures(range(20)), 10)
    write(tmp_path / "train-00001-of-00002.parquet", pictures(range(20, 40)), 15)
    write(tmp_path / "validation-00000-of-00001.parquet", pictures(range(100, 108)), 8)
    write(tmp_path / "test-00000-of-00001.parquet", pictures(range(3)), 8)
    return tmp_path


def flip_in_row_group(path: Path, group: int, column: int) -> None:
    """Changes bytes in the middle of a column chunk's data."""
    chunk = parquet.read_metadata(path).row_group(group).column(column)
    content = bytearray(path.read_bytes())
    start = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size // 2
    content[start : start + 8] = bytes(byte ^ 0xFF for byte in content[start : start + 8])
    path.write_bytes(content)


# --- images -----------------------------------------------------------------------------------------------------------


def test_images_are_read_by_number_and_row_groups_are_the_blocks(shards: Path) -> None:
    data = from_images(shards)
    assert (len(data.train), len(data.held_out), data.shape) == (40, 8, (3, 4, 4))
    assert data.classes == ("0", "1", "2", "3") and data.train.blocks == (10, 10, 15, 5)
    assert reds(data.train) == list(range(40)) and reds(data.held_out) == list(range(100, 108))
    batch = data.train.read(np.array([39, 0, 25, 39]))
    assert batch["image"][:, 0, 0, 0].tolist() == [39, 0, 25, 39] and batch["image"].dtype == torch.uint8
    assert batch["label"].tolist() == [3, 0, 1, 3] and batch["label"].dtype == torch.int64


def test_images_may_lie_in_a_binary_column_and_be_resized(tmp_path: Path) -> None:
    table = pa.table({"jpg": [png(number, size=3 + number) for number in range(12)], "kind": range(12)})
    write(tmp_path / "a.parquet", table, 12)
    data = from_images(tmp_path, label_column="kind", image_size=6)
    assert data.shape == (3, 6, 6) and reds(data.train) == list(range(11)) and reds(data.held_out) == [11]


def test_classes_have_the_names_that_the_files_know(shards: Path) -> None:
    table = pictures(range(20))
    features = {
        "image": {"_type": "Image"},
        "label": {"names": ["cat", "dog", "owl", "eel", "ant"], "_type": "ClassLabel"},
    }
    written = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    write(shards / "train-00000-of-00002.parquet", written, 10)
    assert from_images(shards).classes == ("cat", "dog", "owl", "eel", "ant")


def test_classes_that_no_number_of_ours_can_hold_break_their_row_group_alone(tmp_path: Path) -> None:
    features = {"label": {"names": ["a", "b", "c", "d"], "_type": "ClassLabel"}}
    labels = pa.array([0, 1, 2, 2**64 - 1], pa.uint64())
    table = pa.table({"image": [png(1)] * 4, "label": labels})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    write(tmp_path / "train.parquet", table, 2)
    write(tmp_path / "val.parquet", table, 2)
    split = from_images(tmp_path).train
    assert split.read(np.array([0, 1]))["label"].tolist() == [0, 1]
    with pytest.raises(BrokenSample, match=r"sample 2 \(.*train\.parquet, row group 1\) cannot be read: Integer value"):
        split.read(np.array([0, 2]))


def test_without_statistics_the_largest_class_is_looked_for(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pictures(range(12)), 4, write_statistics=False)
    assert from_images(tmp_path).classes == ("0", "1", "2", "3")


@pytest.mark.parametrize("held_out", ["val", "validation", "test"])
def test_files_may_lie_in_folders(tmp_path: Path, held_out: str) -> None:
    write(tmp_path / "train" / "b.parquet", pictures(range(4)), 4)
    write(tmp_path / "train" / "a.parquet", pictures(range(4, 8)), 4)
    write(tmp_path / held_out / "a.parquet", pictures(range(9, 12)), 4)
    data = from_images(tmp_path)
    assert reds(data.train) == [4, 5, 6, 7, 0, 1, 2, 3] and reds(data.held_out) == [9, 10, 11]


def test_the_last_tenth_of_few_row_groups_is_held_out(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pictures(range(45)), 20)
    data = from_images(tmp_path)
    assert reds(data.held_out) == [18, 19, 38, 39, 44]
    assert reds(data.train) == sorted(set(range(45)) - {18, 19, 38, 39, 44}) and data.train.blocks == (18, 18, 4)


def test_every_tenth_of_many_row_groups_is_held_out(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pictures(range(45)), 2)
    data = from_images(tmp_path)
    assert reds(data.held_out) == [18, 19, 38, 39] and len(data.train) == 41


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"data_column": "picture"},
            r"has no column picture with images .* its columns are image \(struct<.*label \(int",
        ),
        ({"data_column": "label"}, "has no column label with images"),
        ({"label_column": "class"}, "has no column class with classes as whole numbers"),
        ({"label_column": "image"}, "has no column image with classes"),
    ],
)
def test_columns_that_are_not_there_are_named(shards: Path, values: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        from_images(shards, **values)


def test_which_of_two_columns_is_meant_must_be_said(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pictures(range(10), mask=[png(99)] * 10), 10)
    with pytest.raises(
        SettingsError, match=r"has 2 columns \(image, mask\) with images .*; name one with --data-column"
    ):
        from_images(tmp_path)
    assert set(reds(from_images(tmp_path, data_column="mask").train)) == {99}


def test_files_that_differ_in_their_columns_are_refused(shards: Path) -> None:
    write(shards / "train-00001-of-00002.parquet", pictures(range(5)).rename_columns(["image", "class"]), 5)
    with pytest.raises(
        TrainerError,
        match=r"train-00001-of-00002.parquet has no column label of type int64, as .*00000-of-00002.parquet has",
    ):
        from_images(shards)


def test_a_flipped_bit_of_a_footer_ends_in_a_layout_or_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, pa.table({"ids": [[1, 2, 3]] * 40}), 10)
    good = path.read_bytes()
    settings = Settings(task="lm", data="parquet", data_dir=tmp_path)
    refusals = set()
    for place in range(len(good) - 8 - int.from_bytes(good[-8:-4], "little"), len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 2]) + good[place + 1 :])
        try:
            assert all(span.start < span.stop for span in layout(settings).train)
        except TrainerError as error:
            assert str(tmp_path) in str(error) and "\n" not in str(error)
            refusals.add(str(error).rpartition(": ")[2])
    assert any(refusal.startswith("its row groups have") for refusal in refusals)


@pytest.mark.parametrize("damage", ["empty", "cut", "text"])
def test_files_that_are_no_parquet_are_named(shards: Path, damage: str) -> None:
    path = shards / "train-00001-of-00002.parquet"
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": content[:-20], "text": b"PAR1 is not enough"}[damage])
    with pytest.raises(TrainerError, match=rf"{path} is damaged or no Parquet file") as caught:
        from_images(shards)
    assert "\n" not in str(caught.value)


def test_a_column_of_numbers_that_are_no_classes_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pictures(range(12), id=[2**40] * 12), 4)
    with pytest.raises(TrainerError, match=r"a\.parquet, row group 0 has 1099511627776 in column id: that is no class"):
        from_images(tmp_path, label_column="id")


def test_too_few_rows_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pictures([1]), 1)
    with pytest.raises(TrainerError, match="too few rows to train on some and validate on others"):
        from_images(tmp_path)


def test_missing_pyarrow_is_named(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyarrow" else True)
    with pytest.raises(TrainerError, match=r"read with pyarrow: pip install 'gputui\[train\]'"):
        from_images(shards)


@pytest.mark.parametrize(
    ("row", "label", "says"),
    [
        (None, 1, "it has no image"),
        ({"bytes": None, "path": "elsewhere.png"}, 1, "it has no image"),
        ({"bytes": b"no image", "path": None}, 1, "no image of a known kind"),
        ({"bytes": png(1), "path": None}, None, "it has no class"),
        ({"bytes": png(1), "path": None}, -3, r"its class is -3; classes are 0 \.\. 4"),
        ({"bytes": png(1, size=7), "path": None}, 1, "7 x 7 pixels, but the first image has 4 x 4; give --image-size"),
    ],
)
def test_a_row_without_an_image_or_class_breaks_its_sample_alone(
    tmp_path: Path, row: Any, label: int | None, says: str
) -> None:
    good = [{"bytes": png(number), "path": None} for number in range(5)]
    table = pa.table({"image": [*good[:3], row, *good[3:]], "label": pa.array([0, 1, 2, label, 3, 4], pa.int32())})
    write(tmp_path / "train.parquet", table, 3)
    write(tmp_path / "val.parquet", pictures(range(4)), 4)
    split = from_images(tmp_path).train
    assert split.read(np.array([0, 4, 5]))["label"].tolist() == [0, 3, 4]
    with pytest.raises(BrokenSample, match=rf"sample 3 \(.*train.parquet, row group 1, row 0\) .*: {says}") as caught:
        split.read(np.array([0, 4, 3]))
    assert caught.value.index == 3


@pytest.mark.parametrize("column", [0, 2], ids=["image", "label"])
def test_a_damaged_row_group_breaks_its_samples_alone(shards: Path, column: int) -> None:
    path = shards / "train-00001-of-00002.parquet"
    write(path, pictures(range(20, 40)), 15, write_page_checksum=True)
    flip_in_row_group(path, 0, column)
    split = from_images(shards).train
    assert split.read(np.array([3, 35]))["image"][:, 0, 0, 0].tolist() == [3, 35]
    for _ in range(2):  # also when it is asked for again
        with pytest.raises(BrokenSample, match=rf"sample 22 \({path}, row group 0\) cannot be read: ") as caught:
            split.read(np.array([0, 22, 23]))
        assert caught.value.index == 22 and "\n" not in str(caught.value)


@pytest.mark.parametrize("change", ["gone", "cut", "rows", "columns"])
def test_a_file_that_changes_during_the_run_breaks_its_samples_alone(shards: Path, change: str) -> None:
    path = shards / "train-00001-of-00002.parquet"
    split = from_images(shards).train
    if change == "rows":
        write(path, pictures(range(3)), 2)
    elif change == "columns":
        write(path, pictures(range(20)).rename_columns(["image", "class"]), 15)
    elif change == "gone":
        path.unlink()
    else:
        os.truncate(path, 100)
    assert split.read(np.array([19]))["label"].tolist() == [3]
    with pytest.raises(BrokenSample, match=rf"sample 30 \({path}, row group 0\)"):
        split.read(np.array([0, 30]))


def test_the_first_row_group_must_be_readable_when_sizes_are_unknown(shards: Path) -> None:
    path = shards / "train-00000-of-00002.parquet"
    write(path, pictures(range(20)), 10, write_page_checksum=True)
    flip_in_row_group(path, 0, 0)
    with pytest.raises(
        TrainerError, match=rf"{path}, row group 0 cannot be read: .*; remove the file or fetch it again"
    ):
        from_images(shards)


def test_labels_that_cannot_be_searched_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, pictures(range(12)), 4, write_statistics=False, write_page_checksum=True)
    flip_in_row_group(path, 1, 2)
    with pytest.raises(TrainerError, match=rf"{path}, row group 1 cannot be read"):
        from_images(tmp_path)


def test_a_split_can_be_told_what_comes_next_and_travels_to_other_processes(shards: Path) -> None:
    split = from_images(shards).train
    assert isinstance(split, ReadsAhead)
    split.read(np.array([1]))
    split.expect(np.array([12, 13, 22]))
    there = pickle.loads(pickle.dumps(split))
    for each in (split, there):
        assert each.read(np.array([12, 22, 1]))["image"][:, 0, 0, 0].tolist() == [12, 22, 1]


# --- text and tokens --------------------------------------------------------------------------------------------------

POEMS = ["roses are red", "", None, "violets für\u20ac blue", "sugar"]


def bytes_of(split: Split) -> bytes:
    return bytes(token for window in everything(split)["tokens"].tolist() for token in window[:-1])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_rows_of_text_are_joined_by_newlines_within_each_row_group(tmp_path: Path, kind: pa.DataType) -> None:
    write(tmp_path / "train.parquet", pa.table({"text": pa.array(POEMS * 2, kind), "id": range(10)}), 5)
    write(tmp_path / "val.parquet", pa.table({"text": pa.array(["held out, all of it"], kind), "id": [0]}), 5)
    data = from_text(tmp_path)
    group = "roses are red\n\nviolets für\u20ac blue\nsugar".encode()
    windows = (len(group) - 1) // 8
    assert data.vocabulary == 256 and data.train.blocks == (windows, windows)
    assert bytes_of(data.train) == group[: windows * 8] * 2
    assert bytes_of(data.held_out) == b"held out, all of"
    assert bytes(data.train.read(np.array([windows]))["tokens"][0].tolist()) == group[:9]


@pytest.mark.parametrize("kind", [pa.list_(pa.uint16()), pa.large_list(pa.int32()), pa.list_(pa.int64(), 30)])
def test_rows_of_tokens_follow_one_another(tmp_path: Path, kind: pa.DataType) -> None:
    rows = [list(range(30 * number, 30 * number + 30)) for number in range(20)]
    write(tmp_path / "a.parquet", pa.table({"input_ids": pa.array(rows, kind), "text": ["x"] * 20}), 10)
    data = from_text(tmp_path)
    assert data.vocabulary == 600 and data.train.blocks == (33, 33)
    tokens = data.train.read(np.array([32, 33]))["tokens"]
    assert tokens.tolist() == [list(range(256, 265)), list(range(300, 309))]
    assert data.held_out.read(np.array([0]))["tokens"][0].tolist() == list(range(270, 279))


def test_which_column_of_tokens_is_meant_must_be_said(tmp_path: Path) -> None:
    rows = [list(range(20))] * 20
    write(tmp_path / "a.parquet", pa.table({"input_ids": rows, "mask": rows, "text": ["long enough for it"] * 20}), 10)
    with pytest.raises(SettingsError, match=r"has 2 columns \(input_ids, mask\) with lists of tokens; name one with"):
        from_text(tmp_path)
    assert from_text(tmp_path, data_column="mask").vocabulary == 20
    assert from_text(tmp_path, data_column="text").vocabulary == 256


def test_counts_are_kept_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "train.parquet", pa.table({"text": POEMS * 4}), 10)
    write(tmp_path / "val.parquet", pa.table({"text": POEMS}), 10)
    first = from_text(tmp_path)
    reads: list[str] = []
    from trainer.data import parquet_text

    whole = parquet_text.read_rows
    monkeypatch.setattr(
        parquet_text, "read_rows", lambda span, names: (reads.append(span.path.name), whole(span, names))[1]
    )
    again = from_text(tmp_path)
    assert again.train.blocks == first.train.blocks and reads == []
    write(tmp_path / "val.parquet", pa.table({"text": POEMS * 3}), 10)
    longer = from_text(tmp_path)
    assert len(longer.held_out) > len(first.held_out) and set(reads) == {"val.parquet"}
    (tmp_path / COUNTS_FILE).write_text('{"torn')
    assert from_text(tmp_path).train.blocks == first.train.blocks and "train.parquet" in reads
    assert [path.name for path in tmp_path.glob(".*")] == [COUNTS_FILE]


def test_counts_that_cannot_be_kept_are_made_again(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"text": POEMS * 8}), 20)
    (tmp_path / COUNTS_FILE).mkdir()
    assert len(from_text(tmp_path).train) == len(from_text(tmp_path).train) > 0
    assert [path.name for path in tmp_path.glob(".*")] == [COUNTS_FILE]


def test_counts_on_a_read_only_mount_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    write(tmp_path / "a.parquet", pa.table({"text": POEMS * 8}), 20)
    for change in ("write_text", "unlink"):  # the kernel refuses to remove even what is not there
        monkeypatch.setattr(Path, change, read_only)
    assert len(from_text(tmp_path).train) == len(from_text(tmp_path).train) > 0


def test_counts_that_promise_too_much_break_samples(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", pa.table({"text": POEMS * 4}), 20)
    write(tmp_path / "val.parquet", pa.table({"text": POEMS * 4}), 20)
    real = len(from_text(tmp_path).train)
    counts = json.loads((tmp_path / COUNTS_FILE).read_text())
    (tmp_path / COUNTS_FILE).write_text(json.dumps({key: [count * 2, 0] for key, (count, _) in counts.items()}))
    split = from_text(tmp_path).train
    assert len(split.read(np.arange(real))["tokens"]) == real
    with pytest.raises(BrokenSample, match=f"sample {real + 1} .*row group 0.* fewer tokens than were counted"):
        split.read(np.array([0, real + 1]))


def test_a_damaged_row_group_of_text_is_named_when_it_is_counted_and_breaks_samples_later(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    poems = [f"{number} {poem}" for number, poem in enumerate(POEMS * 10)]
    write(path, pa.table({"text": poems}), 25, write_page_checksum=True)
    write(tmp_path / "val.parquet", pa.table({"text": poems}), 50)
    split = from_text(tmp_path).train
    flip_in_row_group(path, 1, 0)
    second = split.blocks[0]
    assert len(split.read(np.array([0]))["tokens"]) == 1
    with pytest.raises(BrokenSample, match=rf"sample {second} \({path}, row group 1\) cannot be read"):
        split.read(np.array([0, second]))
    with pytest.raises(TrainerError, match=rf"{path}, row group 1 cannot be read: .*; remove the file or fetch"):
        from_text(tmp_path)


def test_a_row_group_without_text_is_passed_over_and_one_of_another_type_is_damaged(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array([*POEMS, *[None] * 5, *POEMS], pa.string())})
    write(tmp_path / "train.parquet", table, 5)
    write(tmp_path / "val.parquet", table, 15)
    split = from_text(tmp_path).train
    assert split.blocks == (5, 5)
    assert split.read(np.array([1]))["tokens"].tolist() == split.read(np.array([6]))["tokens"].tolist()
    write(tmp_path / "train.parquet", pa.table({"text": range(15)}), 5)
    with pytest.raises(
        BrokenSample, match=r"sample 5 \(.*train\.parquet, row group 2\) cannot be read: .*cast from int64"
    ):
        pickle.loads(pickle.dumps(split)).read(np.array([5]))


def test_tokens_without_a_value_or_out_of_range_are_no_tokens(tmp_path: Path) -> None:
    good = pa.table({"ids": [[1, 2, 3, 4, 5]] * 10})
    write(tmp_path / "val.parquet", good, 10)
    write(tmp_path / "train.parquet", pa.table({"ids": [[1, None]] * 10}), 10)
    with pytest.raises(TrainerError, match="10 tokens have no value"):
        from_text(tmp_path)
    write(tmp_path / "train.parquet", pa.table({"ids": [[1, 2, 3]] * 9 + [[-1, 1, 1]] * 2}), 11)
    split = from_text(tmp_path).train
    with pytest.raises(BrokenSample, match=r"sample 3 .*row group 0, from token 24\) .*: a token is not 0 \.\. 5"):
        split.read(np.array([1, 3]))


def test_too_little_text_in_each_row_group_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"text": POEMS}), 2)
    with pytest.raises(
        TrainerError, match=r"row groups have at most \d+ tokens in column text, too few for --context 99"
    ):
        from_text(tmp_path, context=99)


def test_text_splits_read_ahead_and_travel(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"text": POEMS * 20}), 20)
    split = from_text(tmp_path).train
    assert isinstance(split, ReadsAhead)
    last = np.array([len(split) - 1])
    split.expect(last)
    expected = split.read(last)["tokens"]
    assert torch.equal(pickle.loads(pickle.dumps(split)).read(last)["tokens"], expected)


# --- row groups in memory ---------------------------------------------------------------------------------------------


class Loader:
    """Loads number k as 10 k, notes in which thread, and waits for a gate where there is one."""

    def __init__(self) -> None:
        self.loads: list[tuple[int, bool]] = []  # number, in the background
        self.gate: threading.Event | None = None
        self.entered = threading.Event()
        self.broken: set[int] = set()

    def __call__(self, number: int) -> int:
        background = threading.current_thread() is not threading.main_thread()
        self.loads.append((number, background))
        if background:
            self.entered.set()
            assert self.gate is None or self.gate.wait(120)
        if number in self.broken:
            raise OSError(f"{number} is broken")
        return 10 * number


def test_the_newest_groups_are_kept() -> None:
    load = Loader()
    groups = RowGroups(load)
    assert [groups.get(number) for number in (0, 1, 2, 3, 0, 4, 0, 1)] == [0, 10, 20, 30, 0, 40, 0, 10]
    assert load.loads == [(number, False) for number in (0, 1, 2, 3, 4, 1)]


def test_expected_groups_are_loaded_once_and_in_the_background() -> None:
    load = Loader()
    groups = RowGroups(load)
    groups.get(0)
    groups.expect([0, 1, 2, 3])
    assert load.entered.wait(120)
    assert (groups.get(1), groups.get(0)) == (10, 0)
    assert load.loads == [(0, False), (1, True)], "only the first few are loaded ahead"


def test_a_group_that_waits_behind_another_is_loaded_at_once() -> None:
    load = Loader()
    load.gate = threading.Event()
    groups = RowGroups(load)
    groups.expect([1, 2])
    assert load.entered.wait(120)
    assert groups.get(2) == 20
    load.gate.set()
    assert groups.get(1) == 10
    assert load.loads == [(1, True), (2, False)]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_group_that_failed_is_tried_again(ahead: bool) -> None:
    load = Loader()
    load.broken = {1}
    groups = RowGroups(load)
    if ahead:
        groups.expect([1])
    with pytest.raises(OSError, match="1 is broken"):
        groups.get(1)
    load.broken = set()
    assert groups.get(1) == 10


def test_a_forked_process_loads_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Loader()
    groups = RowGroups(load)
    groups.get(0)
    groups.expect([1])
    assert load.entered.wait(120)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as after a fork, where no thread of the parent is left
    assert (groups.get(0), groups.get(1)) == (0, 10)
    monkeypatch.setattr(os, "getpid", lambda: -2)
    groups.expect([2])
    assert groups.get(2) == 20
    assert [number for number, _ in load.loads] == [0, 1, 0, 1, 2]


# --- row groups dealt to readers --------------------------------------------------------------------------------------


@pytest.mark.long
def test_each_row_group_is_decoded_once_by_all_readers_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 ranks with 4 readers each, over one epoch of 400 row groups."""
    ranks, workers, batch = 8, 4, 4
    rows = [[number % 97] * 9 for number in range(800 * 24)]
    write(tmp_path / "train.parquet", pa.table({"tokens": rows}), 48)
    write(tmp_path / "val.parquet", pa.table({"tokens": rows[:4]}), 4)
    split = from_text(tmp_path).train
    assert len(split.blocks) == 400
    decoded: list[RowSpan] = []
    read = TokenColumn.load
    monkeypatch.setattr(TokenColumn, "load", lambda column, span: decoded.append(span) or read(column, span))
    order = order_for(split, 0)
    readers = [Reader(Samples(pickle.loads(pickle.dumps(split)), max_broken=0), order, unchanged) for _ in range(32)]
    for deals, micros in ((redealt((), order.size, 0, ranks * workers, batch), order.size // 32), ((), 100)):
        decoded.clear()
        for micro in range(micros):
            for rank in range(ranks):
                start = micro_start(0, micro, rank, ranks, batch)
                then = micro_start(0, micro + workers, rank, ranks, batch)
                request = Request(start, batch, then if then + batch < order.size else None, deals)
                assert readers[micro % workers * ranks + rank].read(request).samples == batch
        if deals:
            assert set(decoded) == {RowSpan(tmp_path / "train.parquet", group, 0, 48) for group in range(400)}
            assert len(decoded) <= 1.1 * 400
    # In one row, each rank's readers decode nearly all that comes by.
    assert len(decoded) > 5 * 100 * 32 / (order.size / 400)


@pytest.mark.long
def test_a_run_of_dealt_row_groups_goes_on_bit_for_bit(two_ranks: Ranks, tmp_path: Path) -> None:
    rows = [[(number * 7 + place) % 50 for place in range(17)] for number in range(240)]
    write(tmp_path / "data" / "train.parquet", pa.table({"tokens": rows}), 8)
    write(tmp_path / "data" / "val.parquet", pa.table({"tokens": rows[:8]}), 8)
    flags = [
        *("--task", "lm", "--data", "parquet", "--data-dir", str(tmp_path / "data"), "--context", "16"),
        *("--width", "32", "--batch-size", "4", "--grad-accum", "1", "--validate-every", "0", "--lr", "0.001"),
    ]
    # Two epochs; the batch changes in the middle of the first one, and a relaunch in the middle of the second.
    first = [*flags, "--steps", "40", "--checkpoint-every", "9", "--num-workers", "1", "--keep", "9"]
    changed = [*first, "--batch-size", "8"]
    two_ranks.run(train_on, tmp_path / "one", *first, "--steps", "9")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for output, stops in (("one", ("40",)), ("two", ("27", "40"))):
        for steps in stops:
            two_ranks.run(
                train_on, tmp_path / output, *changed, "--schedule", "constant", "--resume", "auto", "--steps", steps
            )
    states = [load(tmp_path / output / "checkpoints" / "step_00000040.pt") for output in ("one", "two")]
    assert states[0]["deals"][-1] == states[1]["deals"][-1] == [72, 2, 8]
    assert same(states[0]["model"], states[1]["model"])
