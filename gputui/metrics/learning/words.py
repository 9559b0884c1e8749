"""The words of printed lines: what a name says about its number, and the normal form of a name."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache

EPOCHS = frozenset({"epoch", "epochs", "ep", "e"})

RANKS = frozenset({"rank", "default", "gpu", "worker", "local_rank", "global_rank", "process", "device"})

PARTS = {
    "train": "train", "training": "train", "trn": "train",
    "val": "val", "valid": "val", "validation": "val", "validating": "val", "dev": "val",
    "eval": "eval", "evaluation": "eval", "evaluating": "eval", "evaluate": "eval",
    "test": "test", "testing": "test",
}  # fmt: skip
"""The words for a part of the data, and the one that stands for it before a name."""
HELD_OUT = frozenset({"val", "eval", "test"})

_METRIC_PIECE = re.compile(r"loss|accura|perplex|entropy|reward|rmse|return_mean|likelihood|divergence")

_LEADING = frozenset({"average", "avg", "averaged", "mean", "running", "current", "the", "and", "with", "=>", "of"})
_COUNTER_WORDS = 3  # "global train step"; more words are a sentence
_CONNECTORS = frozenset({"is", "was", "of", "are"})


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Sense(Enum):
    """What a name says about the number behind it."""

    EPOCH = auto()
    STEP = auto()
    RANK = auto()
    METRIC = auto()
    SETTING = auto()  # stored beside metrics, but no sign of them: a configuration has it too
    IGNORED = auto()  # a time, a rate, a memory, a size, the best of several
    UNKNOWN = auto()


STEPS = _words(
    "step steps iter iters iteration iterations it itr i # global_step global_steps globalstep num_updates update "
    "updates batch batches minibatch batch_idx timestep timesteps total_timesteps num_steps train_step train_steps "
    "trained_steps optimizer_step round rounds episode episodes boosting_round n_iter env_steps frames"
)


_METRICS = _words(
    "acc ppl error err mse mae rmse mape rmsle auc auroc auprc aucpr ap map miou iou f f1 precision prec recall dice "
    "bleu rouge meteor cer wer ter reward rewards rew return returns score kl elbo nll bpb bpc bpd psnr ssim lpips fid "
    "inception ce bce top r2 l1 l2 mfu gnorm norm learn objective obj ndcg mrr hits spearman pearson mcc kappa "
    "sensitivity specificity likelihood logp elo winrate win_rate success l td q value_loss bits nats cider energy "
    "gini deviance residual uas las tok_acc em exact_match mlm nsp"
)
_SETTINGS = _words("lr lrs learning_rate wd weight_decay momentum mom beta1 beta2 eps alpha scale dropout")
_TIMES = _words(
    "time times eta elapsed sec secs second seconds ms duration dur hours minutes took remaining wall clock latency "
    "fps ips wps ups wpb bsz tps sps it/s speed throughput ms/batch s/it runtime"
)
_IGNORED = _TIMES | _words(
    "best min max mem memory vram ram gb mb gib mib temp temperature power util size data batch forward backward fwd "
    "bwd total seed line port pid version patience num number nan count counter world params parameters tokens samples "
    "images instances examples workers threads id index counts bytes percent progress cpu gpu wait reader overhead io "
    "load prep steps epochs skipped left used free opt optim optimizer sync comm allreduce timing"
)
# After such a word stands a number of something else: "improved from 0.5 to 0.4".
_PREPOSITIONS = _words("from to at in by for after on than since per with until as and or")


SIGNS = _METRICS | STEPS | EPOCHS | PARTS.keys() | {"L", "l", "bar"}
"""Words without one of which, and without a bar, no line is looked at."""


def has_metric_piece(text: str) -> bool:
    """Return whether a part of some word in lower case is that of a metric's name."""
    return _METRIC_PIECE.search(text) is not None


@lru_cache(1024)
def meaning(name: str) -> Sense:
    """The meaning of a name in its normal form."""
    if not name:
        return Sense.UNKNOWN
    is_letter_of_loss = name == "L"
    name = name.lower()
    pieces = [piece for piece in re.split(r"[^\w@#]+|_|@", name) if piece]
    last = name
    tail = name.rsplit("/", 1)[-1]
    if pieces:
        last = pieces[-1]
    ends = {name, tail, last, "_".join(pieces[-2:])}
    if "best" in pieces or not _TIMES.isdisjoint({name, tail, last}):
        return Sense.IGNORED
    if tail in RANKS:
        return Sense.RANK
    measured = {*pieces, *(piece.rstrip("0123456789") for piece in pieces), *ends}
    is_metric = is_letter_of_loss or has_metric_piece(name) or not _METRICS.isdisjoint(measured)
    # A "loss_step" counts nothing.
    if not is_metric and len(pieces) <= _COUNTER_WORDS and not EPOCHS.isdisjoint(ends):
        return Sense.EPOCH
    if not is_metric and len(pieces) <= _COUNTER_WORDS and not STEPS.isdisjoint(ends):
        return Sense.STEP
    if not _SETTINGS.isdisjoint(ends):
        return Sense.SETTING
    if is_metric:
        return Sense.METRIC
    if _IGNORED.isdisjoint(pieces):
        return Sense.UNKNOWN
    return Sense.IGNORED


@lru_cache(1024)
def normal_name(printed: tuple[str, ...]) -> str:
    """The name that the words before a number make: joined by ``_``, and a word of its own for a part of
    the data before it. "" if they end in no name.

    >>> normal_name(("Validation", "loss"))
    'val/loss'
    """
    name_words = []
    for word in printed:
        if len(word) > 1 and (word.istitle() or word.isupper()):
            word = word.lower()
        name_words.append(word)
    while name_words and name_words[-1] in _CONNECTORS:
        name_words.pop()
    if not name_words or name_words[-1] in _PREPOSITIONS:
        return ""
    while len(name_words) > 1 and name_words[0] in _LEADING:
        name_words.pop(0)
    if len(name_words) > 1 and name_words[0] in PARTS:
        part = PARTS[name_words.pop(0)]
        while len(name_words) > 1 and name_words[0] in _LEADING:
            name_words.pop(0)
        return f"{part}/{'_'.join(name_words)}"
    return "_".join(name_words)


@lru_cache(1024)
def has_part(name: str) -> bool:
    """Return whether a name itself says of which part of the data it is."""
    return any(piece.rstrip("0123456789") in PARTS for piece in re.split(r"[\W_]+", name.lower()))
