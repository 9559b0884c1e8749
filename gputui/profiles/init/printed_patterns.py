"""Metrics patterns for the lines that a script prints. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from gputui.metrics.printed import UNITS
from gputui.profiles.init.printed_lines import EPOCHS, Course, Part, Printed, PrintedValue

Steps = Literal["global", "in_epoch", "epoch", "unclear"]

_STEPS = frozenset({
    "step", "global_step", "iter", "iter_num", "iteration", "it", "current_step", "n_iter", "train_step", "update",
})  # fmt: skip
_PLACES = frozenset({"i", "idx", "batch", "batch_id", "step_in_epoch", "i_batch", "j", "b"})
_COUNTS = frozenset({"step", "iter", "epoch", "total", "total_steps"})
_TIMES = frozenset({"time", "dt", "took", "elapsed", "duration", "step_ms", "ms", "t", "time_per_step"})
_PAIRED = frozenset(
    {"train", "val", "valid", "validation", "test", "eval", "grad", "best", "data", "batch", "avg", "mean"}
)
_METRIC = re.compile(
    r"loss|acc|lr|rate|ppl|perplex|norm|time|sec|ms\b|speed|throughput|tok|mfu|mem|score|f1|bleu|reward|err|top|iou|auc|psnr|ssim|dt|scale"
)
_RATES = {"tok": "tokens", "samples": "samples", "images": "samples", "img": "samples"}
_NUMBER = r"[-+.,\w]*\w"


class DraftPattern(Struct, frozen=True):
    """A pattern for the line printed at ``line`` of the script.

    ``steps`` says what its step counts: the whole training, an epoch that the line names (both are ready to use), only
    epochs, or an epoch that the line does not name. ``is_guess``: the script does not show whether its step begins
    again with each epoch, or how long an epoch is. ``units`` are the units printed behind groups.
    """

    pattern: str
    steps: Steps
    units: dict[str, str]
    line: int
    is_guess: bool = False


def patterns_of(printed: Iterable[Printed]) -> list[DraftPattern]:
    """Patterns for the lines with a step or an epoch and at least one more number, in the order of the script."""
    found: dict[str, DraftPattern] = {}
    lines = [(list(_first_line(line.parts)), line.line) for line in printed]
    has_epochs = any(_counter(parts, "epoch") is not None for parts, _ in lines)
    for parts, number in lines:
        draft = _draft(parts, number, has_epochs)
        if draft is not None:
            found.setdefault(draft.pattern, draft)
    return list(found.values())


def _draft(parts: list[Part], line: int, has_epochs: bool) -> DraftPattern | None:
    groups, course = _groups(parts, has_epochs)
    names: set[str] = set()
    units: dict[str, str] = {}
    pattern = ""
    for index, part in enumerate(parts):
        if isinstance(part, str):
            pattern += _escape(part.lstrip() if index == 0 else part)
            continue
        name = groups[index] if index in groups else _label(parts, index)
        value = _NUMBER if index not in groups else r"\d[\d,]*" if "," in part.shape else r"\d+"
        pad = " *" if re.match(r"[ >^+]*[1-9]", part.shape) and not pattern.endswith(" *") else ""
        percent = "%" if part.shape.endswith("%") else ""
        if not name or name in names:
            pattern += f"{pad}\\S+"
            continue
        names.add(name)
        following = parts[index + 1] if index + 1 < len(parts) else ""
        unit = re.match(r"\s?([A-Za-zµ]+)", following) if isinstance(following, str) else None
        if unit is not None and unit[1] in UNITS and unit[1] not in ("s", "sec"):
            units[name] = unit[1]
        pattern += f"{pad}(?P<{name}>{value}){percent}"
    if not names - _COUNTS or not names & {"step", "iter", "epoch"}:
        return None
    steps: Steps = "epoch"
    if "step" in names:
        steps = "global"
    elif "iter" in names:
        steps = "in_epoch" if "epoch" in names else "unclear"
    # The text behind the last number may vary from line to line.
    pattern = pattern[: pattern.rindex(")") + 1]
    is_guess = steps == "in_epoch" and (course == "" or "total" not in names)
    return DraftPattern(pattern, steps, units, line, is_guess)


def _groups(parts: list[Part], has_epochs: bool) -> tuple[dict[int, str], Course]:
    """The groups of the values that count steps and epochs, and of the totals behind them; and how the step goes on.
    ``has_epochs``: some line of the script names an epoch."""
    epoch, step = _counter(parts, "epoch"), _counter(parts, "step")
    groups = {} if epoch is None else {epoch: "epoch"}
    if epoch is not None and _has_total(parts, epoch):
        groups[epoch + 2] = ""
    counter = None if step is None else parts[step]
    if step is None or not isinstance(counter, PrintedValue):
        return groups, ""
    course = counter.course
    total = parts[step + 2] if _has_total(parts, step) else None
    of_run = isinstance(total, PrintedValue) and re.search(r"(max|total|num|train)_?(step|iter)", total.text)
    if course == "" and _kind(_identifier(counter.text)) == "place":
        course = "again" if has_epochs else "on"
    elif course == "" and (epoch is None or of_run):
        course = "on"
    groups[step] = "step" if course == "on" else "iter"
    if isinstance(total, PrintedValue):
        of_epoch = re.search(r"\blen\(|loader|per_epoch|batches", total.text)
        groups[step + 2] = "total" if course != "on" else "" if of_epoch else "total_steps"
    return groups, course


def _counter(parts: list[Part], wanted: str) -> int | None:
    """The value that counts steps or epochs: best the one behind that word, then one whose bare name says so."""
    ranks: dict[int, int] = {}
    for index, part in enumerate(parts):
        if isinstance(part, str) or part.course == "fixed" or (index and _is_total(parts[index - 1])):
            continue
        before = parts[index - 1] if index else ""
        word = re.search(r"([A-Za-z]\w*)\W*$", before) if isinstance(before, str) else None
        said = _kind(word[1].lower()) if word is not None else ""
        named = _kind(_identifier(part.text))
        if (said or named).replace("place", "step") == wanted:
            ranks[index] = 3 if said else 2 if part.is_bare else 1
    return max(ranks, key=lambda index: ranks[index]) if ranks else None


def _kind(name: str) -> str:
    """What a name counts: "epoch", "step", or "place" for a step within an epoch; "" for others."""
    if name in EPOCHS:
        return "epoch"
    return "place" if name in _PLACES or name.endswith("_idx") else "step" if name in _STEPS else ""


def _is_total(before: Part) -> bool:
    """Whether a value behind this text is a total, such as ``/10``."""
    return isinstance(before, str) and before.rstrip().endswith(("/", " of"))


def _has_total(parts: list[Part], index: int) -> bool:
    return index + 2 < len(parts) and _is_total(parts[index + 1]) and isinstance(parts[index + 2], PrintedValue)


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
    """The name in an expression: ``loss`` of ``loss.item() * scale``, ``lr`` of ``groups[0]["lr"]``."""
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
    """The name of a metric: the text before the number, else the script's name for it; "" for other values."""
    part = parts[index]
    assert isinstance(part, PrintedValue)
    before = parts[index - 1] if index else ""
    after = parts[index + 1] if index + 1 < len(parts) else ""
    words = re.findall(r"[A-Za-z_][\w/@]*", before.lower()) if isinstance(before, str) else []
    name = words[-1] if words else ""
    if len(words) > 1 and words[-2] in _PAIRED:
        name = f"{words[-2]}_{name}"
    own = _identifier(part.text)
    if not name or (not _METRIC.search(name) and _METRIC.search(own)):
        name = own or name
    name = re.sub(r"\W", "_", name).strip("_")
    # Between two numbers, a rate alone is the name of the second: "loss 0.5 tok/s 900".
    is_of_next = index + 2 < len(parts) and isinstance(after, str) and re.fullmatch(r"\s*\w*/s\w*\W*", after)
    if isinstance(after, str) and not is_of_next and re.match(r" ?(\w+)?/s(?!\w*\s*[=:])", after):
        name = name if name.endswith("per_s") or "tok" in name else "samples_per_s"
    elif name in _TIMES:
        name = "step_time"
    name = re.sub(r"^(tok|samples|images|img)\w*?_s(ec)?$", lambda m: f"{_RATES[m[1]]}_per_s", name)
    if name == "rank" or _kind(name) in ("step", "place") or not re.fullmatch(r"[A-Za-z]\w*", name):
        return ""
    is_number = re.search(r"[.\d][\w]*[feEgGd]$|^[feEgGd]$|^,", part.shape) is not None
    return name if is_number or _METRIC.search(name) else ""


def _escape(text: str) -> str:
    """Escape like `re.escape`, but leave characters alone that are special only inside brackets."""
    escaped = re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text)
    return re.sub(r"\s+", lambda match: " " if match[0] == " " else "\\s+", escaped)
