"""Contrastive learning: the two views of an image are to be each other's nearest among all ranks' views."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from trainer.config import Settings
from trainer.data.contract import CropDraw, Fields, Images, Indices, Transform
from trainer.errors import SettingsError
from trainer.tasks.vision import Augmentation, VisionObjective, are_digits, crops_decode
from trainer.world import World

CANDIDATES = 64  # about so many whatever the batch, since accuracy falls with it: runs stay comparable


class Contrastive(VisionObjective):
    """InfoNCE in both directions over the embeddings [2n, size] of two views, with those of all ranks as candidates.

    Oord et al., "Representation learning with contrastive predictive coding" (2018), equation 4, with the cosine over a
    temperature as similarity. Every rank brings batches of one size. Views are as in Chen et al., "A simple framework
    for contrastive learning of visual representations" (2020), with milder crops of the digits.

    Accuracy is how often the other view is the most similar of a group of about `CANDIDATES` held-out images. Groups
    and views are always the same, whatever the batch and the number of ranks.
    """

    views = 2
    metrics = ("accuracy", "loss")

    def __init__(self, settings: Settings, data: Images, model: nn.Module, world: World) -> None:
        super().__init__(settings, data, model)
        if settings.batch_size == 1 and world.size == 1:
            raise SettingsError("--task contrastive needs other images to compare with: use a larger --batch-size")
        self.exchanges = world.size > 1
        self._settings = settings
        self._world = world
        _, height, width = data.shape
        natural = not are_digits(settings)
        area = 0.2 if natural else 0.5
        self._held_out_view = Augmentation(settings.seed, height, width, smallest_area=area, flip=natural, light=0.4)
        self._view = dataclasses.replace(self._held_out_view, is_decoded=crops_decode(settings, data))

    def forward(self, fields: Fields) -> Tensor:
        settings = self._settings
        embeddings = self._embeddings(fields)
        images = fields["identity"]
        candidates = embeddings
        others = images
        first = self._world.rank * len(embeddings)
        if self.exchanges:
            gather: Any = _AllGather.apply
            candidates = gather(embeddings, self._world)
            others = gather(images, self._world)
        same = images.unsqueeze(1) == others
        return info_nce(embeddings, candidates, first, settings.temperature, hardest=settings.hard_negatives, same=same)

    @torch.no_grad()
    def measure(self, fields: Fields) -> dict[str, Tensor]:
        return {"embeddings": self._embeddings(fields)}

    def joined(self, measured: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = torch.cat(self._world.gather(measured["embeddings"].cpu()))
        sums = torch.zeros(3, dtype=torch.float64)
        groups = rows.tensor_split(max(1, round(len(rows) / CANDIDATES)))
        for group in groups[self._world.rank :: self._world.size]:
            truth = torch.arange(len(group))
            similarities = _similarities(group[:, 0], group[:, 1])
            right = sum(int((similarities.argmax(dim) == truth).sum()) for dim in (0, 1))
            loss = info_nce(group, group, 0, self._settings.temperature)
            sums += torch.tensor([len(group) * float(loss), right / 2, len(group)], dtype=torch.float64)
        return dict(zip(("loss", "accuracy", "count"), sums, strict=True))

    def _embeddings(self, fields: Fields) -> Tensor:
        """Embeddings of both views of each image, fp32 [n, 2, size], of length 1; one pass of the model."""
        images = fields["image"]
        if images.dim() == 4:  # whole ones, [n, channels, height, width], of which the views are yet to be made
            images = images.unsqueeze(1).expand(-1, 2, -1, -1, -1)
        views = self._view.apply(images.flatten(0, 1), fields["changes"].flatten(0, 1))
        embeddings: Tensor = self.model(self.pixels(views))
        return functional.normalize(embeddings.float(), dim=-1).view(len(images), 2, -1)

    def crops(self) -> CropDraw | None:
        if self._view.is_decoded:
            return functools.partial(self._view.crops, [f"training view {number}" for number in (1, 2)])
        return None

    def transform(self, *, training: bool) -> Transform:
        if training:
            return functools.partial(_with_two_views, self._view, "training")
        return functools.partial(_with_two_views, self._held_out_view, "held-out")


def _with_two_views(view: Augmentation, place: str, raw: Fields, positions: Indices) -> Fields:
    """Images, or crops [n, 2, …] of them, the random changes [n, 2, 6] that make two views of each, and checksums [n].

    A batch over the end of an epoch, or equal files, may hold an image twice.
    """
    if "checksum" in raw:
        identity = raw["checksum"]
    else:
        identity = torch.tensor([zlib.crc32(image.numpy().tobytes()) for image in raw["image"]])
    changes = torch.stack([view.draw(f"{place} view {number}", positions) for number in (1, 2)], dim=1)
    return {"image": raw["image"], "changes": changes, "identity": identity}


def info_nce(
    embeddings: Tensor,
    candidates: Tensor,
    first: int,
    temperature: float,
    *,
    hardest: int = 0,
    same: Tensor | None = None,
) -> Tensor:
    """The mean over `embeddings` [n, 2, size] of the loss to find each view's partner among the other `candidates`.

    `candidates` [m, 2, size] holds `embeddings` from row `first` on. With `hardest`, each view is compared with its
    partner and only so many of the others, the most similar ones. Candidates of the `same` image [n, m] are no others.
    """
    truth = torch.arange(first, first + len(embeddings), device=embeddings.device)
    partner = torch.arange(len(candidates), device=embeddings.device) == truth.unsqueeze(1)
    losses = []
    for view in (0, 1):
        logits = _similarities(embeddings[:, view], candidates[:, 1 - view]) / temperature
        if same is not None:
            logits = logits.masked_fill(same & ~partner, -torch.inf)
        target = truth
        if hardest:
            others = logits.masked_fill(partner, -torch.inf).topk(min(hardest, len(candidates) - 1)).values
            logits = torch.cat([logits.gather(1, truth.unsqueeze(1)), others], dim=1)
            target = torch.zeros_like(truth)
        losses.append(functional.cross_entropy(logits, target))
    return (losses[0] + losses[1]) / 2


def _similarities(rows: Tensor, columns: Tensor) -> Tensor:
    """Products [rows, columns] in fp32: at a low temperature half precision does not separate close candidates."""
    with torch.autocast(rows.device.type, enabled=False):
        return rows @ columns.T


class _AllGather(torch.autograd.Function):
    """All ranks' tensors of one shape, joined along the first dimension by rank; gradients are summed (collective).

    With DDP's mean over ranks, that is the gradient of the mean of their losses.
    """

    @staticmethod
    def forward(ctx: Any, shard: Tensor, world: World) -> Tensor:
        ctx.world = world
        joined = shard.new_empty(world.size * len(shard), *shard.shape[1:])
        dist.all_gather(list(joined.chunk(world.size)), shard.contiguous(), group=world.group)
        return joined

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # All-reduce, because gloo has no reduce-scatter; embeddings are small.
        summed = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed, group=ctx.world.group)
        return summed.tensor_split(ctx.world.size)[ctx.world.rank], None
