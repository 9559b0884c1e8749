"""Whether more or less of a metric is better."""

from __future__ import annotations

_MORE_IS_BETTER = frozenset(
    {
        "accuracy", "acc", "f1", "auc", "bleu", "rouge", "map", "iou", "precision", "recall", "reward", "score", "mfu",
        "samples_per_s", "tokens_per_s", "images_per_s", "steps_per_s", "throughput", "retrieval", "hit",
    }
)  # fmt: skip
_LESS_IS_BETTER = frozenset({"loss", "error", "err", "perplexity", "ppl", "time", "wer", "mse", "mae"})


def is_more_better(metric: str) -> bool:
    """Whether a larger value of this metric is the better one, told by the words in its name."""
    words = metric.lower().replace("/", "_").replace("-", "_")
    parts = set(words.split("_"))
    if not parts.isdisjoint(_LESS_IS_BETTER):
        return False
    return not parts.isdisjoint(_MORE_IS_BETTER) or any(name in words for name in _MORE_IS_BETTER if "_" in name)
