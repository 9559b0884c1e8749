"""Names of metrics: what they say about a metric, and filters of names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence

from msgspec import Struct

_MORE_IS_BETTER = frozenset({
    "accuracy", "acc", "f1", "auc", "bleu", "rouge", "map", "iou", "precision", "recall", "reward",
    "score", "mfu", "samples_per_s", "tokens_per_s", "images_per_s", "steps_per_s", "throughput",
    "retrieval", "hit",
})  # fmt: skip
_LESS_IS_BETTER = frozenset({"loss", "error", "err", "perplexity", "ppl", "time", "wer", "mse", "mae"})
_OF_THE_RUN = frozenset({
    "batch_size", "grad_accum", "gradient_accumulation_steps", "world_size", "parameters",
})  # fmt: skip
_TOTALS = frozenset({
    "total_steps", "total_epochs", "max_steps", "max_epochs", "total_samples", "total_tokens",
})  # fmt: skip
_NOT_MEASURED = _OF_THE_RUN | {
    "lr", "learning_rate", "epoch", "step", "samples", "tokens", "loss_scale", "weight_decay", "momentum",
}  # fmt: skip

EXPRESSION_MARK = "~"
_GLOB = frozenset("*?[")


def is_more_better(metric: str) -> bool:
    plain_name = metric.lower().replace("/", "_").replace("-", "_")
    parts = set(plain_name.split("_"))
    if not parts.isdisjoint(_LESS_IS_BETTER):
        return False
    return not parts.isdisjoint(_MORE_IS_BETTER) or any(name in plain_name for name in _MORE_IS_BETTER if "_" in name)


def is_set(name: str) -> bool:
    """Return whether a metric is set or counted rather than measured, so that smoothing would
    falsify it: learning rates, epochs, totals and the like. Decided by the parts of its name."""
    parts = name.casefold().replace(".", "/").replace("-", "_").split("/")
    return any(
        part in _NOT_MEASURED
        or (part.startswith(("lr_", "total_")) and not part.endswith("loss"))
        or part.endswith("_lr")
        for part in parts
    )


def is_of_the_run(name: str) -> bool:
    """Return whether a metric tells what a run is, such as its batch size, rather than how it goes:
    most often one value."""
    return name.casefold() in _OF_THE_RUN | _TOTALS


class NameFilter(Struct, frozen=True):
    """The names that match, in the given order; all names if there is a ``problem`` with the
    pattern."""

    names: tuple[str, ...]
    problem: str | None = None


def filter_names(names: Sequence[str], pattern: str) -> NameFilter:
    """The names that match ``pattern``, ignoring case. Of several words one must match: any part of
    a name or, with ``*``, ``?`` or ``[…]``, the whole. ``!`` before a word excludes its matches;
    after ``~``, the rest is a regular expression. An empty pattern matches every name."""
    text = pattern.strip()
    if not text:
        return NameFilter(tuple(names))
    if text.startswith(EXPRESSION_MARK):
        try:
            search = re.compile(text[len(EXPRESSION_MARK) :], re.IGNORECASE).search
        except (re.error, OverflowError, RecursionError) as error:
            return NameFilter(tuple(names), f"not a regular expression: {error}")
        return NameFilter(tuple(name for name in names if search(name)))
    conditions = text.split()
    included = [_matcher(word) for word in conditions if not word.startswith("!")]
    unwanted = [_matcher(word[1:]) for word in conditions if word.startswith("!") and len(word) > 1]
    return NameFilter(
        tuple(
            name
            for name in names
            if (not included or any(matches(name) for matches in included))
            and not any(matches(name) for matches in unwanted)
        )
    )


def _matcher(word: str) -> Callable[[str], bool]:
    folded = word.casefold()
    if _GLOB.isdisjoint(folded):
        return lambda name: folded in name.casefold()
    match = re.compile(fnmatch.translate(folded)).match
    return lambda name: match(name.casefold()) is not None
