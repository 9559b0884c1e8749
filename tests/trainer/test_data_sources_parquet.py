"""Parquet: layouts, columns, row groups, and damage; with real ZSTD files."""

from __future__ import annotations

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

from gputui.recovery.watch.metric_history import MetricHistory
from gputui.recovery.watch.rules import RULES
from tests.tables import table
from tests.trainer.running import step_lines, train
from tests.trainer.sources import encoded, everything, images, stream, text
from trainer.data import BrokenSample, Split
from trainer.data.contract import Fields, Indices
from trainer.data.files import COUNTS_FILE
from trainer.data.parquet import RowGroups, RowSpan
from trainer.errors import SettingsError, TrainerError

POEMS = ["roses are red", "", None, "violets für\u20ac blue", "sugar"]


def png(value: int) -> bytes:
    return encoded(Image.new("RGB", (4, 4), (value, 0, 0)))


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


class Contents(RowGroups[int]):
    """The content of each sample's row group."""

    def read(self, indices: Indices) -> Fields:
        return {"content": torch.tensor([content for _, content, _, _ in self.groups(indices)])}

    def bytes_of(self, content: int) -> int:
        return 10


# --- images -----------------------------------------------------------------------------------------------------------


def test_images_are_read_by_number_and_row_groups_are_the_blocks(shards: Path) -> None:
    data = from_images(shards)
    assert (len(data.train), len(data.held_out), data.shape) == (40, 8, (3, 4, 4))
    assert data.classes == ("0", "1", "2", "3")
    assert data.train.blocks == (10, 10, 15, 5)
    assert reds(data.train) == list(range(40))
    assert reds(data.held_out) == list(range(100, 108))
    batch = data.train.read(np.array([39, 0, 25, 39]))
    assert batch["image"][:, 0, 0, 0].tolist() == [39, 0, 25, 39]
    assert batch["image"].dtype == torch.uint8
    assert batch["label"].tolist() == [3, 0, 1, 3]
    assert batch["label"].dtype == torch.int64


def test_the_last_tenth_of_few_row_groups_is_held_out(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pictures(range(45)), 20)
    data = from_images(tmp_path)
    assert reds(data.held_out) == [18, 19, 38, 39, 44]
    assert reds(data.train) == sorted(set(range(45)) - {18, 19, 38, 39, 44})
    assert data.train.blocks == (18, 18, 4)


@table(
    ("values", "says"),
    [
        ({"data_column": "picture"}, r"no column picture with images .* columns are image \(struct<.*label \(int"),
        ({"label_column": "image"}, "has no column image with classes as whole numbers"),
    ],
)
def test_columns_that_are_not_there_are_named(shards: Path, values: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        from_images(shards, **values)


def test_a_file_that_is_no_parquet_is_named(shards: Path) -> None:
    path = shards / "train-00001-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TrainerError, match=rf"{path} is damaged or no Parquet file") as caught:
        from_images(shards)
    assert "\n" not in str(caught.value)


@table(
    ("row", "label", "says"),
    [
        (None, 1, "no image of a known kind"),
        ({"bytes": b"no image", "path": None}, 1, "no image of a known kind"),
        ({"bytes": png(1), "path": None}, None, "its class is none of 0"),
        ({"bytes": png(1), "path": None}, -3, "its class is none of 0"),
    ],
)
def test_a_row_without_an_image_or_class_breaks_its_sample_alone(
    tmp_path: Path, row: Any, label: int | None, says: str
) -> None:
    rows = [{"bytes": png(number), "path": None} for number in range(5)]
    rows.insert(3, row)
    write(tmp_path / "train.parquet", pa.table({"image": rows, "label": [0, 1, 2, label, 3, 4]}), 3)
    write(tmp_path / "val.parquet", pictures(range(4)), 4)
    split = from_images(tmp_path).train
    assert split.read(np.array([0, 4, 5]))["label"].tolist() == [0, 3, 4]
    with pytest.raises(BrokenSample, match=rf"sample 3 \(.*train.parquet, row group 1, row 0\) .*: {says}"):
        split.read(np.array([0, 4, 3]))


@pytest.mark.parametrize("column", [0, 2], ids=["image", "label"])
def test_a_damaged_row_group_breaks_its_samples_alone(shards: Path, column: int) -> None:
    path = shards / "train-00001-of-00002.parquet"
    write(path, pictures(range(20, 40)), 15, write_page_checksum=True)
    chunk = parquet.read_metadata(path).row_group(0).column(column)
    content = bytearray(path.read_bytes())
    middle = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size // 2
    content[middle : middle + 8] = bytes(byte ^ 0xFF for byte in content[middle : middle + 8])
    path.write_bytes(content)
    split = from_images(shards).train
    assert split.read(np.array([3, 35]))["image"][:, 0, 0, 0].tolist() == [3, 35]
    for _ in range(2):  # also when it is asked for again
        with pytest.raises(BrokenSample, match=rf"sample 22 \({path}, row group 0\) cannot be read: ") as caught:
            split.read(np.array([0, 22, 23]))
        assert caught.value.index == 22
        assert "\n" not in str(caught.value)


# --- text and tokens --------------------------------------------------------------------------------------------------


@table("kind", [pa.string(), pa.large_string()])
def test_rows_of_text_are_joined_by_newlines_within_each_row_group(tmp_path: Path, kind: pa.DataType) -> None:
    write(tmp_path / "train.parquet", pa.table({"text": pa.array(POEMS * 2, kind), "id": range(10)}), 5)
    write(tmp_path / "val.parquet", pa.table({"text": pa.array(["held out, all of it"], kind), "id": [0]}), 5)
    data = from_text(tmp_path)
    group = "roses are red\n\nviolets für\u20ac blue\nsugar".encode()
    windows = (len(group) - 1) // 8
    assert data.vocabulary == 256
    assert data.train.blocks == (windows, windows)
    assert bytes(stream(data.train)) == group[: windows * 8] * 2
    assert bytes(stream(data.held_out)) == b"held out, all of"
    assert bytes(data.train.read(np.array([windows]))["tokens"][0].tolist()) == group[:9]


@table("kind", [pa.list_(pa.uint16()), pa.large_list(pa.int32()), pa.list_(pa.int64(), 30)])
def test_rows_of_tokens_follow_one_another(tmp_path: Path, kind: pa.DataType) -> None:
    rows = [list(range(30 * number, 30 * number + 30)) for number in range(20)]
    write(tmp_path / "a.parquet", pa.table({"input_ids": pa.array(rows, kind), "text": ["x"] * 20}), 10)
    data = from_text(tmp_path)
    assert data.vocabulary == 600
    assert data.train.blocks == (33, 33)
    tokens = data.train.read(np.array([32, 33]))["tokens"]
    assert tokens.tolist() == [list(range(256, 265)), list(range(300, 309))]
    assert data.held_out.read(np.array([0]))["tokens"][0].tolist() == list(range(270, 279))


def test_counts_are_kept_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "train.parquet", pa.table({"text": POEMS * 4}), 10)
    write(tmp_path / "val.parquet", pa.table({"text": POEMS}), 10)
    first = from_text(tmp_path)
    reads: list[str] = []
    whole = RowSpan.read
    monkeypatch.setattr(RowSpan, "read", lambda span, *names: (reads.append(span.path.name), whole(span, *names))[1])
    again = from_text(tmp_path)
    assert again.train.blocks == first.train.blocks
    assert reads == []
    write(tmp_path / "val.parquet", pa.table({"text": POEMS * 3}), 10)
    longer = from_text(tmp_path)
    assert len(longer.held_out) > len(first.held_out)
    assert set(reads) == {"val.parquet"}
    (tmp_path / COUNTS_FILE).write_text('{"torn')
    assert from_text(tmp_path).train.blocks == first.train.blocks
    assert "train.parquet" in reads
    assert [path.name for path in tmp_path.glob(".*")] == [COUNTS_FILE]


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


# --- row groups in memory ---------------------------------------------------------------------------------------------


def test_the_newest_row_groups_are_kept_and_the_next_ones_decoded_ahead() -> None:
    loads: list[int] = []
    gate = threading.Event()

    def load(span: RowSpan) -> int:
        loads.append(span.group)
        assert span.group != 8 or gate.wait(120)
        return 10 * span.group

    rows = Contents([RowSpan(Path("file"), number, 0, 2) for number in range(9)], [2] * 9, load, cache_bytes=45)

    def read(*groups: int) -> list[int]:
        contents: list[int] = rows.read(np.array(groups) * 2)["content"].tolist()
        return contents

    for number in (0, 1, 2, 3, 0, 4, 0, 1):
        assert read(number) == [10 * number]
    assert loads == [0, 1, 2, 3, 4, 1]
    assert rows.cache_use() == (8, 2)
    assert rows.cache_use() == (0, 0)
    rows.expect(np.array([16, 10, 0, 2]))  # in the background, and only the first few
    assert read(5) == [50]
    assert not gate.is_set()
    gate.set()
    assert read(8, 5) == [80, 50]
    assert sorted(loads[6:]) == [5, 8]
    assert read(6, 7) == [60, 70]
    assert sorted(loads[8:]) == [6, 7]


def test_a_cache_that_is_too_small_raises_gputuis_alert(tmp_path: Path) -> None:
    """In row groups of three images a batch of eight is spread over several, which are all decoded anew each epoch."""
    write(tmp_path / "data" / "train.parquet", pictures(range(48)), 3)
    write(tmp_path / "data" / "val.parquet", pictures(range(4)), 4)
    flags = ("--data", "parquet", "--data-dir", str(tmp_path / "data"), "--image-size", "8", "--validate-every", "0")
    seen = {}
    for cache_bytes in ("0", "1000000"):
        assert train(tmp_path / cache_bytes, *flags, "--steps", "9", "--cache-bytes", cache_bytes) == 0
        history = MetricHistory()
        for line in step_lines(tmp_path / cache_bytes):
            values = {name: line[name] for name in ("epoch", "cache_hit_rate")}
            history.add(line["step"], values, 20.0 * line["step"])  # as if a step took longer
        observations = history.observe(is_fresh=True, rules=RULES)
        seen[cache_bytes] = next(item for item in observations if item.kind == "cache_misses")
    too_small, large = seen.values()
    assert too_small.applies
    assert too_small.value is not None
    assert too_small.limit is not None
    assert too_small.value < too_small.limit
    assert large.value == 100.0


def test_reading_processes_tell_the_use_of_their_caches(shards: Path, tmp_path: Path) -> None:
    flags = ("--data", "parquet", "--data-dir", str(shards), "--image-size", "8", "--num-workers", "2", "--steps", "3")
    assert train(tmp_path / "out", *flags) == 0
    assert [0 <= line["cache_hit_rate"] <= 1 for line in step_lines(tmp_path / "out")] == [True] * 3
