"""The trackers themselves: what they were told can be read back, also after a resume."""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.telemetry.histograms import Histogram, ValueCounts
from trainer.telemetry.sinks import Sink, SinkFeed, close_all
from trainer.telemetry.trackers import TensorBoard, WeightsAndBiases


def histogram() -> Histogram:
    tally = ValueCounts()
    tally.add(torch.tensor([-0.5, 0.0, 0.25, 0.25]))
    return tally.histogram("block.0", "gradient")


def use(sink: Sink, first: int, last: int, settings: dict[str, Any], *, good: bool = True) -> None:
    """One attempt of a run, as the trainer makes it."""
    feed = SinkFeed(sink)
    feed.settings(settings)
    for step in range(first, last + 1):
        feed.scalars(step, {"loss": 1 / step, "val/loss": math.nan})
    feed.histogram(last, histogram())
    feed.histogram(last, ValueCounts().histogram("empty", "activation"))
    close_all([feed], good, patience=60)
    assert not feed.failed


def test_tensorboard(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    use(TensorBoard(folder / "tensorboard"), 1, 3, {"lr": 0.1})
    use(TensorBoard(folder / "tensorboard"), 4, 5, {"lr": 0.1})
    assert len(list((folder / "tensorboard").iterdir())) == 2
    read = EventAccumulator(str(folder / "tensorboard"), {"histograms": 0}).Reload()
    losses = read.Scalars("loss")
    assert [event.step for event in losses] == [1, 2, 3, 4, 5]
    assert [event.value for event in losses] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert math.isnan(read.Scalars("val/loss")[0].value)
    drawn = read.Histograms("gradient/block.0")[0]
    assert (drawn.step, drawn.histogram_value.num, drawn.histogram_value.min) == (3, 4, -0.5)
    assert sum(drawn.histogram_value.bucket) == 4
    assert "settings/text_summary" in read.Tags()["tensors"]


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: a LevelDB log of protocol buffers after seven bytes of its own."""
    from wandb.proto import wandb_internal_pb2

    data, position, parts = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            record.ParseFromString(parts)
            yield record
            parts = b""


@pytest.mark.long
def test_wandb_stays_offline_and_keeps_its_id(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_MODE", "online")
        use(WeightsAndBiases(folder / "out"), 1, 3, {"lr": 0.1})
        # wandb names its folders by the second, and a test is faster than any restart.
        (folder / "out" / "wandb").rename(folder / "first")
        use(WeightsAndBiases(folder / "out"), 3, 4, {"lr": 0.2}, good=False)
        with pytest.raises(BlockingIOError):  # nobody has called
            server.accept()
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")
    run_id = json.loads((folder / "out" / "trackers" / "wandb.json").read_text())["id"]
    files = [
        file
        for attempt in (folder / "first", folder / "out" / "wandb")
        for file in attempt.glob(f"offline-run-*-{run_id}/run-{run_id}.wandb")
    ]
    history, exits, drawn = [], [], False
    for file in files:
        for record in wandb_records(file):
            if record.WhichOneof("record_type") == "history":
                values = {
                    ".".join([item.key, *item.nested_key]).strip("."): item.value_json for item in record.history.item
                }
                if "loss" in values:
                    history.append((int(values["step"]), float(values["loss"])))
                drawn = drawn or values.get("gradient/block.0.values", "").startswith("[1,")
            elif record.WhichOneof("record_type") == "exit":
                exits.append(record.exit.exit_code)
    assert history == [(1, 1.0), (2, 1 / 2), (3, 1 / 3), (3, 1 / 3), (4, 1 / 4)]
    assert exits == [0, 1]
    assert drawn
