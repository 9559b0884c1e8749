"""What the name of a metric says about it."""

from __future__ import annotations

_MORE_IS_BETTER = frozenset(
    {
        "accuracy", "acc", "f1", "auc", "bleu", "rouge", "map", "iou", "precision", "recall", "reward", "score", "mfu",
        "samples_per_s", "tokens_per_s", "images_per_s", "steps_per_s", "throughput", "retrieval", "hit",
    }
)  # fmt: skip
_LESS_IS_BETTER = frozenset({"loss", "error", "err", "perplexity", "ppl", "time", "wer", "mse", "mae"})
_NOT_MEASURED = frozenset(
    {
        "lr", "learning_rate", "epoch", "step", "samples", "tokens", "loss_scale", "weight_decay", "momentum",
        "batch_size", "grad_accum", "gradient_accumulation_steps", "world_size", "parameters",
    }
)  # fmt: skip


def is_more_better(metric: str) -> bool:
    """Whether a larger value of this metric is the better one."""
    words = metric.lower().replace("/", "_").replace("-", "_")
    parts = set(words.split("_"))
    if not parts.isdisjoint(_LESS_IS_BETTER):
        return False
    return not parts.isdisjoint(_MORE_IS_BETTER) or any(name in words for name in _MORE_IS_BETTER if "_" in name)


def is_set(name: str) -> bool:
    """Whether a metric is set or counted rather than measured, so that an average of it would only lie: learning rates
    (``lr``, ``lr/group0``, ``optimizer.learning_rate``), epochs, totals and the like, by the parts of its name."""
    parts = name.casefold().replace(".", "/").replace("-", "_").split("/")
    return any(part in _NOT_MEASURED or part.startswith(("lr_", "total_")) or part.endswith("_lr") for part in parts)
