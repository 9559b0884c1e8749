"""Metrics patterns for the lines that a script prints. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from gputui.metrics.values import UNITS
from gputui.profiles.init.printed_lines import EPOCHS, AcrossEpochs, Part, Printed, PrintedValue

Steps = Literal["global", "in_epoch", "epoch", "unclear"]

# Names that scripts give to what they print: counters of steps, and of steps within an epoch.
_STEPS = frozenset({
    "step", "global_step", "iter", "iter_num", "iteration", "it", "current_step", "n_iter", "train_step", "update",
})  # fmt: skip
_STEPS_IN_EPOCH = frozenset({"i", "idx", "batch", "batch_id", "step_in_epoch", "i_batch", "j", "b"})
# The groups of a pattern that are no metrics.
_COUNTS = frozenset({"step", "iter", "epoch", "total", "total_steps"})
# What a step took.
_TIMES = frozenset({"time", "dt", "took", "elapsed", "duration", "step_ms", "ms", "t", "time_per_step"})
# Words that belong to the name behind them, as in "val loss".
_PAIRED = frozenset(
    {"train", "val", "valid", "validation", "test", "eval", "grad", "best", "data", "batch", "avg", "mean"}
)
# A part of such a name makes a value a metric, whatever its format.
_METRIC = re.compile(
    r"loss|acc|lr|rate|ppl|perplex|norm|time|sec|ms\b|speed|throughput|tok|mfu|mem|score|f1|bleu|reward|err|top|iou|auc|psnr|ssim|dt|scale"
)
_RATES = {"tok": "tokens", "samples": "samples", "images": "samples", "img": "samples"}
_NUMBER = r"[-+.,\w]*\w"


class DraftPattern(Struct, frozen=True):
    """A pattern for the line printed at ``line`` of the script.

    ``steps`` says what its step counts: the whole training, an epoch that the line names (both are
    ready to use), only epochs, or an epoch that the line does not name. ``is_guess``: the script
    does not show whether its step begins again with each epoch, or how long an epoch is. ``units``
    are the units printed behind groups.
    """

    pattern: str
    steps: Steps
    units: dict[str, str]
    line: int
    is_guess: bool = False


def patterns_of(printed: Iterable[Printed]) -> list[DraftPattern]:
    """Patterns for the lines with a step or an epoch and at least one more number."""
    found: dict[str, DraftPattern] = {}
    lines = [(list(_first_line(line.parts)), line.line) for line in printed]
    has_epochs = any(_counter(parts, "epoch") is not None for parts, _ in lines)
    for parts, number in lines:
        draft = _draft(parts, number, has_epochs)
        if draft is not None:
            found.setdefault(draft.pattern, draft)
    return list(found.values())


def _draft(parts: list[Part], line: int, has_epochs: bool) -> DraftPattern | None:
    """``("step ", <step>, " loss ", <loss>)`` becomes ``step (?P<step>\\d+) loss (?P<loss>[-+.,\\w]*\\w)``."""
    counts, across_epochs = _counts(parts, has_epochs)
    names: set[str] = set()
    units: dict[str, str] = {}
    pattern = ""
    for index, part in enumerate(parts):
        if isinstance(part, str):
            pattern += _escape(part.lstrip() if index == 0 else part)
            continue
        pattern += " *" if re.match(r"[ >^+]*[1-9]", part.shape) and not pattern.endswith(" *") else ""
        name = counts[index] if index in counts else _label(parts, index)
        if not name or name in names:
            pattern += "\\S+"
            continue
        names.add(name)
        unit = re.match(r"\s?([A-Za-zµ]+)", _text_at(parts, index + 1))
        if unit is not None and unit[1] in UNITS and unit[1] not in ("s", "sec"):
            units[name] = unit[1]
        number = _NUMBER if index not in counts else r"\d[\d,]*" if "," in part.shape else r"\d+"
        pattern += f"(?P<{name}>{number})" + ("%" if part.shape.endswith("%") else "")
    if not names - _COUNTS or not names & {"step", "iter", "epoch"}:
        return None
    steps: Steps = "epoch"
    if "step" in names:
        steps = "global"
    elif "iter" in names:
        steps = "in_epoch" if "epoch" in names else "unclear"
    # The text behind the last number may vary from line to line.
    pattern = pattern[: pattern.rindex(")") + 1]
    is_guess = steps == "in_epoch" and (across_epochs == "unknown" or "total" not in names)
    return DraftPattern(pattern, steps, units, line, is_guess)


def _counts(parts: list[Part], has_epochs: bool) -> tuple[dict[int, str], AcrossEpochs]:
    """The groups of the values that count steps and epochs, and of the totals behind them ("" for a
    total that is not read), by their places in ``parts``; and how the step goes on. ``Epoch 3
    [20/100]`` has epoch, iter and total. ``has_epochs``: some line of the script names an epoch."""
    epoch, step = _counter(parts, "epoch"), _counter(parts, "step")
    counts = {} if epoch is None else {epoch: "epoch"}
    if epoch is not None and _total(parts, epoch) is not None:
        counts[epoch + 2] = ""
    counter = None if step is None else parts[step]
    if step is None or not isinstance(counter, PrintedValue):
        return counts, "unknown"
    across_epochs = counter.across_epochs
    total = _total(parts, step)
    is_of_run = total is not None and re.search(r"(max|total|num|train)_?(step|iter)", total.text)
    if across_epochs == "unknown" and _counted_by(_identifier(counter.text)) == "step in epoch":
        across_epochs = "restarts" if has_epochs else "continues"
    elif across_epochs == "unknown" and (epoch is None or is_of_run):
        across_epochs = "continues"
    counts[step] = "step" if across_epochs == "continues" else "iter"
    if total is not None:
        is_of_epoch = re.search(r"\blen\(|loader|per_epoch|batches", total.text)
        counts[step + 2] = "total" if across_epochs != "continues" else "" if is_of_epoch else "total_steps"
    return counts, across_epochs


def _counter(parts: list[Part], wanted: Literal["step", "epoch"]) -> int | None:
    """The place of the value that counts steps or epochs: best the one behind that word, then one
    whose bare name says so."""
    ranks: dict[int, int] = {}
    for index, part in enumerate(parts):
        if isinstance(part, str) or part.across_epochs == "no_count" or _ends_with_of(_text_at(parts, index - 1)):
            continue
        word = re.search(r"([A-Za-z]\w*)\W*$", _text_at(parts, index - 1))
        by_text = "" if word is None else _counted_by(word[1].lower())
        by_name = _counted_by(_identifier(part.text))
        if (by_text or by_name).removesuffix(" in epoch") == wanted:
            ranks[index] = 3 if by_text else 2 if part.is_bare else 1
    return max(ranks, key=lambda index: ranks[index]) if ranks else None


def _counted_by(name: str) -> Literal["epoch", "step", "step in epoch", ""]:
    """The thing that a value of this name counts."""
    if name in EPOCHS:
        return "epoch"
    if name in _STEPS_IN_EPOCH or name.endswith("_idx"):
        return "step in epoch"
    return "step" if name in _STEPS else ""


def _total(parts: list[Part], index: int) -> PrintedValue | None:
    """The total behind a count, such as the 10 of ``3/10``."""
    total = parts[index + 2] if index + 2 < len(parts) else None
    return total if isinstance(total, PrintedValue) and _ends_with_of(_text_at(parts, index + 1)) else None


def _ends_with_of(text: str) -> bool:
    return text.rstrip().endswith(("/", " of"))


def _text_at(parts: list[Part], index: int) -> str:
    """The text at a place, "" if a value is there or nothing."""
    part = parts[index] if 0 <= index < len(parts) else ""
    return part if isinstance(part, str) else ""


def _first_line(parts: tuple[Part, ...]) -> Iterable[Part]:
    is_first = True
    for part in parts:
        if not isinstance(part, str):
            is_first = False
            yield part
            continue
        text = part.lstrip("\n\r") if is_first else part
        head, newline, _ = text.partition("\n")
        if head:
            is_first = False
            yield head
        if newline:
            return


def _identifier(expression: str) -> str:
    """The name in an expression: ``loss`` of ``loss.item() * 2``, ``lr`` of ``groups[0]["lr"]``."""
    key = re.search(r"\[['\"](\w+)['\"]\]\s*$", expression)
    if key is not None:
        return key[1].lower()
    text = re.sub(r"\.(item|detach|cpu|mean|tolist|get_last_lr|compute|val|avg|float)\(?\)?(\[\d+\])?", "", expression)
    text = re.sub(r"^(float|int|round|len|sum|min|max)\(", "", text)
    for piece in re.split(r"[-+*/%(\[,]", text):
        if words := re.findall(r"[A-Za-z_]\w*", piece):
            return str(words[-1]).lower()
    return ""


def _label(parts: list[Part], index: int) -> str:
    """The name of a metric: the text before the number, else the script's name for it; "" for other
    values. ``val loss: <v>`` gives val_loss, ``<n> tok/s`` gives tokens_per_s."""
    part = parts[index]
    assert isinstance(part, PrintedValue)
    before, after = _text_at(parts, index - 1), _text_at(parts, index + 1)
    words = re.findall(r"[A-Za-z_][\w/@]*", before.lower())
    name = words[-1] if words else ""
    if len(words) > 1 and words[-2] in _PAIRED:
        name = f"{words[-2]}_{name}"
    own = _identifier(part.text)
    if not name or (not _METRIC.search(name) and _METRIC.search(own)):
        name = own or name
    name = re.sub(r"\W", "_", name).strip("_")
    # Between two numbers, a rate alone is the name of the second: "loss 0.5 tok/s 900".
    is_of_next = index + 2 < len(parts) and re.fullmatch(r"\s*\w*/s\w*\W*", after)
    if not is_of_next and re.match(r" ?(\w+)?/s(?!\w*\s*[=:])", after):
        name = name if name.endswith("per_s") or "tok" in name else "samples_per_s"
    elif name in _TIMES:
        name = "step_time"
    name = re.sub(r"^(tok|samples|images|img)\w*?_s(ec)?$", lambda m: f"{_RATES[m[1]]}_per_s", name)
    is_step = _counted_by(name) in ("step", "step in epoch")
    if name == "rank" or is_step or not re.fullmatch(r"[A-Za-z]\w*", name):
        return ""
    is_number = re.search(r"[.\d][\w]*[feEgGd]$|^[feEgGd]$|^,", part.shape) is not None
    return name if is_number or _METRIC.search(name) else ""


def _escape(text: str) -> str:
    """Escape like `re.escape`, but leave characters alone that are special only inside brackets."""
    escaped = re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text)
    return re.sub(r"\s+", lambda match: " " if match[0] == " " else "\\s+", escaped)
