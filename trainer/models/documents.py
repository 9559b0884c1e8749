"""Documents that share a row: attention within each, by lengths or masks, and a trial whether a model keeps to it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# See `lengths_of` and `mask_of`.
Documents = tuple[int, ...] | Tensor


def lengths_of(positions: Tensor) -> tuple[int, ...]:
    """The lengths of documents, row by row, from positions [batch, time] that begin at 0 in each."""
    starts = (positions == 0).flatten().nonzero().flatten().tolist()
    return tuple(end - start for start, end in itertools.pairwise([*starts, positions.numel()]))


def mask_of(positions: Tensor) -> Tensor:
    """The tokens that each token may look at, bool [batch, 1, time, time], from positions [batch, time] in documents.

    Unlike lengths, it has one shape for all batches, which compiled code needs.
    """
    document = (positions == 0).cumsum(dim=1)
    return (document.unsqueeze(2) == document.unsqueeze(1)).tril().unsqueeze(1)


def attend(query: Tensor, key: Tensor, value: Tensor, documents: Documents | None, **options: Any) -> Tensor:
    """Causal attention within documents: [batch, heads, time, head size], as all arguments.

    By lengths, each document is attended to by itself, in time and memory that grow with documents and not with rows.
    """
    attention: Callable[..., Tensor] = functools.partial(functional.scaled_dot_product_attention, **options)
    if documents is None or isinstance(documents, Tensor):
        return attention(query, key, value, attn_mask=documents, is_causal=documents is None)
    batch, heads, time, size = query.shape
    # All rows as one, [1, heads, batch * time, head size]: a document is a slice of it.
    joined = (tensor.transpose(0, 1).reshape(1, heads, -1, size) for tensor in (query, key, value))
    parts = (torch.split(tensor, list(documents), dim=2) for tensor in joined)
    mixed = [attention(*document, is_causal=True).transpose(1, 2) for document in zip(*parts, strict=True)]
    return torch.cat(mixed, dim=1).view(batch, time, heads, size).transpose(1, 2)


@torch.no_grad()
def separates_documents(model: nn.Module, vocabulary: int, length: int, device: torch.device) -> bool:
    """Return whether a document of `length` tokens that shares a row has the logits that it has alone, and none of its
    tokens sees a later one. The model is in eval mode; all ranks that share its weights call this together.

    Of a row of two documents, the first, the second, or the later half of both is changed, which other logits must not
    feel: in one batch each row is computed alike, and what is hidden counts exactly 0 in any type. Right masks gave 0
    of the logits' size, the least wrong one, in a fresh XGLM, 0.0004. Alone, a document has another shape and other
    kernels: 30 fresh layers in bf16 made 0.05 by rounding, documents as one text 0.5 or more. Medians over tokens
    forgive one that rounding sends to another expert.
    """
    if not getattr(model, "keeps_documents", False):
        return False
    row = torch.randint(vocabulary, (2, length), generator=torch.Generator().manual_seed(0)).to(device)
    changed = (row + 1) % vocabulary
    half = length // 2
    rows = row.repeat(4, 1, 1)
    rows[1, 0] = changed[0]
    rows[2, 1] = changed[1]
    rows[3, :, half:] = changed[:, half:]
    alone = model(row).float()
    try:
        first, *others = (
            model(rows.flatten(1), torch.arange(length, device=device).repeat(4, 2)).float().view(4, *alone.shape)
        )
    except Exception:  # of any type, for a mask that it does not take; what is not about that comes again in step 1
        return False
    size = alone.norm(dim=-1).mean()
    felt = (others[0] - first)[1:], (others[1] - first)[:1], (others[2] - first)[:, :half]
    limits = ((first - alone, 0.2), *((difference, 1e-4) for difference in felt))
    # Not a quotient: a head of zeros gives logits of size 0.
    return all(bool((error.norm(dim=-1).median(dim=-1).values <= limit * size).all()) for error, limit in limits)
