"""Which objective the settings give, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.trainer.no_split import NoSplit
from trainer.config import Settings
from trainer.data.contract import Data, Fields, Images, Text
from trainer.errors import SettingsError
from trainer.tasks import build_objective
from trainer.tasks.contrastive import Contrastive
from trainer.tasks.language import MaskedTokens, NextToken
from trainer.tasks.vision import Classification
from trainer.world import World

ALONE = World(rank=0, size=1, device=torch.device("cpu"), backend="")


IMAGES = Images(NoSplit(), NoSplit(), (3, 8, 8), tuple("abc"))
TEXT = Text(NoSplit(), NoSplit(), 8, 20)


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, 4)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(images.flatten(1))
        return logits


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(24, 24)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.table(tokens)
        return logits


CASES: list[tuple[str, Data, type[nn.Module], type[nn.Module], Fields]] = [
    (
        "classify",
        IMAGES,
        Vision,
        Classification,
        {"image": torch.zeros(4, 3, 8, 8, dtype=torch.uint8), "label": torch.arange(4) % 3},
    ),
    ("contrastive", IMAGES, Vision, Contrastive, {"image": torch.randint(0, 256, (4, 3, 8, 8)).to(torch.uint8)}),
    ("lm", TEXT, Language, NextToken, {"tokens": torch.randint(0, 20, (4, 9))}),
    ("mlm", TEXT, Language, MaskedTokens, {"tokens": torch.randint(0, 20, (4, 9))}),
]


@pytest.mark.parametrize(("task", "data", "model", "kind", "raw"), CASES)
def test_each_task_has_its_objective(
    task: str, data: Data, model: type[nn.Module], kind: type[nn.Module], raw: Fields
) -> None:
    settings = Settings.model_validate({"task": task, "data": "synthetic", "augment": True})
    objective = build_objective(settings, data, model(), ALONE)
    assert type(objective) is kind
    assert objective.exchanges is False
    for training in (True, False):
        fields = objective.transform(training=training)(raw, np.arange(4))
        sums = {name: float(value) for name, value in objective.measure(fields).items()} if not training else {}
        assert objective(fields).shape == ()
        if not training:
            assert sums["count"] == 4
            assert objective.summary(sums)["loss"] > 0


@pytest.mark.parametrize(("task", "data", "model", "kind", "raw"), CASES)
def test_objectives_compile_to_one_graph(
    task: str, data: Data, model: type[nn.Module], kind: type[nn.Module], raw: Fields
) -> None:
    settings = Settings.model_validate({"task": task, "data": "synthetic", "augment": True})
    objective = build_objective(settings, data, model(), ALONE)
    fields = objective.transform(training=True)(raw, np.arange(4))
    compiled: Any = torch.compile(objective, backend="eager", fullgraph=True)
    loss = compiled(fields)
    assert torch.allclose(loss, objective(fields))
    loss.backward()
    assert all(parameter.grad is not None for parameter in objective.parameters())


@pytest.mark.parametrize(
    ("settings", "data", "message"),
    [
        ({"task": "contrastive", "augment": False}, IMAGES, "use --augment true"),
        ({"task": "contrastive", "parallel": "data_parallel"}, IMAGES, "use --parallel ddp"),
        ({"task": "contrastive", "batch_size": 1}, IMAGES, "--batch-size of 2 or more"),
    ],
)
def test_what_cannot_be_learnt_is_refused_in_one_line(settings: dict[str, Any], data: Data, message: str) -> None:
    given = Settings.model_validate({"data_dir": "somewhere", **settings})
    with pytest.raises(SettingsError, match=message) as refused:
        build_objective(given, data, Vision(), ALONE)
    assert "\n" not in str(refused.value)


def test_one_image_per_rank_is_enough_where_there_are_several_ranks() -> None:
    settings = Settings(task="contrastive", batch_size=1)
    two = World(rank=0, size=2, device=torch.device("cpu"), backend="gloo")
    assert build_objective(settings, IMAGES, Vision(), two).exchanges
