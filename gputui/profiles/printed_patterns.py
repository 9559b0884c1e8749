"""Metrics patterns for the lines that a script prints. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from gputui.metrics.formats import UNITS
from gputui.profiles.printed_lines import Part, Printed

Steps = Literal["global", "in_epoch", "epoch", "unclear"]

_STEPS = frozenset({
    "step", "steps", "global_step", "iter", "iter_num", "iteration", "it", "current_step", "n_iter", "train_step",
    "update", "updates",
})  # fmt: skip
_PLACES = frozenset({"i", "idx", "batch_idx", "batch", "batch_id", "step_in_epoch", "i_batch", "j", "b"})
_EPOCHS = frozenset({"epoch", "ep", "epoch_idx", "current_epoch", "e"})
_TIMES = frozenset({"time", "dt", "took", "elapsed", "duration", "step_ms", "ms", "t", "time_per_step"})
_PAIRED = frozenset(
    {"train", "val", "valid", "validation", "test", "eval", "grad", "best", "data", "batch", "avg", "mean"}
)
_METRIC = re.compile(
    r"loss|acc|lr|rate|ppl|perplex|norm|time|sec|ms\b|speed|throughput|tok|mfu|mem|score|f1|bleu|reward|err|top|iou|auc|psnr|ssim|dt|scale"
)
_RATES = {"tok": "tokens", "samples": "samples", "images": "samples", "img": "samples"}
_NUMBER = r"[-+.\w]+"


class DraftPattern(Struct, frozen=True):
    """A pattern for the line printed at ``line`` of the script.

    ``steps`` says what its step counts: the whole training, an epoch of known length (both are ready to use), only
    epochs, or an epoch whose length is not printed. ``units`` are the units printed behind groups.
    """

    pattern: str
    steps: Steps
    units: dict[str, str]
    line: int


def patterns_of(printed: Iterable[Printed]) -> list[DraftPattern]:
    """Patterns for the lines with a step or an epoch and at least one more number, in the order of the script."""
    found: dict[str, DraftPattern] = {}
    lines = list(printed)
    has_epochs = any("epoch" in _kinds(list(_first_line(line.parts))) for line in lines)
    for line in lines:
        draft = _draft(line, has_epochs)
        if draft is not None:
            found.setdefault(draft.pattern, draft)
    return list(found.values())


def _draft(printed: Printed, has_epochs: bool) -> DraftPattern | None:
    parts = list(_first_line(printed.parts))
    kinds = _kinds(parts)
    if not has_epochs:
        # Without epochs, ``i`` counts the steps of the whole training.
        kinds = ["step" if kind == "place" else kind for kind in kinds]
    has_epoch = "epoch" in kinds
    names: set[str] = set()
    units: dict[str, str] = {}
    pattern = ""
    for index, part in enumerate(parts):
        if isinstance(part, str):
            pattern += _escape(part.lstrip() if index == 0 else part)
            continue
        name = _group(kinds, index, has_epoch) or _label(parts, index)
        _, shape = part
        value = r"\d+" if name in ("step", "iter", "epoch", "total", "total_steps") else _NUMBER
        pad = " *" if re.match(r"[ >^+]*[1-9]", shape) and not pattern.endswith(" *") else ""
        if not name or name in names:
            pattern += f"{pad}\\S+"
            continue
        names.add(name)
        following = parts[index + 1] if index + 1 < len(parts) else ""
        unit = re.match(r"\s?([A-Za-zµ]+)", following) if isinstance(following, str) else None
        if unit is not None and unit[1] in UNITS and unit[1] not in ("s", "sec"):
            units[name] = unit[1]
        pattern += f"{pad}(?P<{name}>{value})"
    is_step = "step" in names or "iter" in names
    metrics = names - {"step", "iter", "epoch", "total", "total_steps"}
    if not metrics or not (is_step or has_epoch):
        return None
    steps: Steps = "epoch" if not is_step else "global"
    if "iter" in names:
        steps = "in_epoch" if "total" in names else "unclear"
    # The text behind the last number may vary from line to line.
    pattern = pattern[: pattern.rindex(")") + 1]
    return DraftPattern(pattern, steps, units, printed.line)


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


def _kinds(parts: list[Part]) -> list[str]:
    """The `_kind` of each part; "total" for a value behind "/" or "of"."""
    kinds = [_kind(parts, index) if isinstance(part, tuple) else "" for index, part in enumerate(parts)]
    for index, part in enumerate(parts):
        if isinstance(part, tuple) and not _is_plain(parts, index) and index > 1 and kinds[index - 2]:
            kinds[index] = "total"
    return kinds


def _kind(parts: list[Part], index: int) -> str:
    """What a value counts: "epoch", "step", or "place" for a step within an epoch; "" for others."""
    before = parts[index - 1] if index else ""
    word = re.search(r"([A-Za-z_]\w*)\W*$", before) if isinstance(before, str) else None
    for found in (_identifier(parts[index][0]), word[1].lower() if word is not None else ""):
        if found in _EPOCHS and _is_plain(parts, index):
            return "epoch"
        if found in _PLACES or found.endswith("_idx"):
            return "place"
        if found in _STEPS:
            return "step"
    return ""


def _group(kinds: list[str], index: int, has_epoch: bool) -> str:
    """The group's name if it is a step, an epoch or a total of these, else ""."""
    kind = kinds[index]
    if kind == "epoch":
        return "epoch"
    before = next((each for each in reversed(kinds[:index]) if each), "")
    follows_total = index + 2 < len(kinds) and kinds[index + 2] == "total"
    if kind in ("step", "place"):
        return "iter" if kind == "place" or (has_epoch and follows_total) else "step"
    if kind == "total":
        return "" if before == "epoch" else "total" if has_epoch else "total_steps"
    return ""


def _is_plain(parts: list[Part], index: int) -> bool:
    """Whether a value is no total, such as ``/10`` behind another value."""
    before = parts[index - 1] if index else ""
    return not (isinstance(before, str) and before.rstrip().endswith(("/", " of")))


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
    expression, shape = ("", "") if isinstance(part, str) else part
    before = parts[index - 1] if index else ""
    after = parts[index + 1] if index + 1 < len(parts) else ""
    words = re.findall(r"[A-Za-z_][\w/]*", before.lower()) if isinstance(before, str) else []
    name = words[-1] if words else ""
    if len(words) > 1 and words[-2] in _PAIRED:
        name = f"{words[-2]}_{name}"
    own = _identifier(expression)
    if not name or (not _METRIC.search(name) and _METRIC.search(own)):
        name = own or name
    name = re.sub(r"\W", "_", name).strip("_")
    if isinstance(after, str) and re.match(r" ?(\w+)?/s(?!\w*\s*[=:])", after):
        name = name if name.endswith("per_s") or "tok" in name else "samples_per_s"
    elif name in _TIMES:
        name = "step_time"
    name = re.sub(r"^(tok|samples|images|img)\w*?_s(ec)?$", lambda m: f"{_RATES[m[1]]}_per_s", name)
    if name in ("rank", "step", "iter", "iteration") or not re.fullmatch(r"[A-Za-z]\w*", name):
        return ""
    is_number = re.search(r"[.\d][\w]*[feEgGd]$|^[feEgGd]$|^,", shape) is not None
    return name if is_number or _METRIC.search(name) else ""


def _escape(text: str) -> str:
    """Escape like `re.escape`, but leave characters alone that are special only inside brackets."""
    escaped = re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text)
    return re.sub(r"\s+", lambda match: " " if match[0] == " " else "\\s+", escaped)
