"""Sources of metrics are recognised among written files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.metrics.written_sources import recognised

CSV = "epoch,step,train_loss\n0,50,1.5\n0,100,1.2\n"
SB3 = "rollout/ep_rew_mean,time/total_timesteps,train/loss\n21.5,2048,\n30,4096,0.5\n"
FASTAI = "epoch,train_loss,valid_loss,time\n0,0.9,0.8,00:12\n1,0.7,0.6,00:12\n"
LOG = '{"train_lr": 0.1, "train_loss": 0.5, "epoch": 0}\n{"train_lr": 0.1, "train_loss": 0.4, "epoch": 1}\n'
DETECTRON = '{"iteration": 19, "total_loss": 0.5}\n{"iteration": 39, "total_loss": 0.4}\n'


@pytest.mark.parametrize(
    ("name", "text", "kind", "step"),
    [
        ("metrics.csv", CSV, "csv", None),
        ("progress.csv", SB3, "csv", "time/total_timesteps"),
        ("history.csv", FASTAI, "csv", "epoch"),
        ("log.txt", LOG, "jsonl", "epoch"),
        ("metrics.json", DETECTRON, "jsonl", "iteration"),
        ("log.jsonl", '{"step": 1, "loss": 2}\n{"step": 2, "loss": 1}\n', "jsonl", None),
    ],
)
def test_files_of_metrics(tmp_path: Path, name: str, text: str, kind: str, step: str | None) -> None:
    (tmp_path / name).write_text(text)
    source = recognised(tmp_path / name)
    assert source is not None
    assert (source.kind, source.path, source.reading.step) == (kind, str(tmp_path / name), step)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.csv", f"step,loss\n1,0.5\n{'9' * 400},0.4\n"),
        ("metrics.csv", f"step,loss\n1,0.5\n{'9' * 5_000},0.4\n"),
        ("metrics.csv", "epoch,step,train_loss\n"),  # nothing to count yet
        ("metrics.csv", "epoch,step,train_loss\n0,50,1"),  # half a line
        ("people.csv", "name,age\nanna,31\nbob,40\n"),
        ("predictions.csv", "id,label\n0,3\n1,5\n"),
        ("plan.csv", "step,what\n1,mix\n2,bake\n"),
        ("matrix.csv", "0.5,0.4\n0.1,0.2\n"),
        ("config.json", '{\n  "epochs": 10,\n  "lr": 0.1\n}\n'),
        ("samples.jsonl", '{"step": 1, "text": "a"}\n{"step": 2, "text": "b"}\n'),
        ("back.jsonl", '{"step": 9, "loss": 1}\n{"step": 3, "loss": 1}\n'),
        ("train.log", "step 1 loss 0.5\nstep 2 loss 0.4\n"),
        ("notes.txt", "[1, 2]\n[2, 3]\n"),
    ],
)
def test_other_files(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert recognised(tmp_path / name) is None


def test_files_known_by_their_names(tmp_path: Path) -> None:
    events = tmp_path / "runs [1]" / "events.out.tfevents.17.host.42.0"
    offline = tmp_path / "wandb/offline-run-20261128_100000-abc/run-abc.wandb"
    online = tmp_path / "wandb/run-20261128_100000-abc/run-abc.wandb"
    history = tmp_path / "out/checkpoint-500/trainer_state.json"
    history.parent.mkdir(parents=True)
    source = recognised(events)
    assert source is not None
    assert (source.kind, source.path, source.reading.place) == ("tensorboard", str(events), "")
    store = tmp_path / "mlruns/0/6f1c"
    (store / "metrics/val").mkdir(parents=True)
    for name in ("loss", "val/loss"):
        (store / "metrics" / name).write_text("1795907012000 0.5 10\n")
        assert recognised(store / "metrics" / name) is None
    (store / "meta.yaml").touch()
    sources = [recognised(store / "metrics" / name) for name in ("loss", "val/loss")]
    assert [source.reading.place for source in sources if source and source.kind == "mlflow"] == ["loss", "val/loss"]
    for path in (offline, online):
        source = recognised(path)
        assert source is not None
        assert (source.kind, source.path) == ("wandb", str(path))
    source = recognised(history)
    assert source is not None
    assert (source.kind, source.path) == ("hf", f"{tmp_path}/out/checkpoint-*/trainer_state.json")
    # The one beside the checkpoints, of the end, has the same history.
    assert recognised(tmp_path / "out/trainer_state.json") == source
