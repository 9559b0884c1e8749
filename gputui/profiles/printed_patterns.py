"""From the lines that a script prints to metrics patterns that find them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gputui.metrics.formats import UNITS
from gputui.profiles.script_survey import Printed

Steps = Literal["global", "in_epoch", "epoch", "unclear"]

_STEPS = frozenset(
    {
        "step",
        "steps",
        "global_step",
        "iter",
        "iter_num",
        "iteration",
        "it",
        "current_step",
        "n_iter",
        "train_step",
        "update",
        "updates",
    }
)
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


@dataclass(frozen=True, slots=True)
class DraftPattern:
    """A pattern for the line printed at ``line`` of the script. ``steps`` is what its step is: one of the whole
    training, a place within a pass of known length (both are ready to use), the pass, or a place of which that length
    is not printed. ``units`` are those printed behind a group."""

    pattern: str
    steps: Steps
    units: dict[str, str]
    line: int


def patterns_of(printed: Iterable[Printed]) -> list[DraftPattern]:
    """Patterns for the lines that name a step or an epoch and at least one more number, in the order of the script."""
    found: dict[str, DraftPattern] = {}
    lines = list(printed)
    has_epochs = any("epoch" in _kinds(list(_first_line(one.parts))) for one in lines)
    for one in lines:
        draft = _draft(one, has_epochs)
        if draft is not None:
            found.setdefault(draft.pattern, draft)
    return list(found.values())


def _draft(printed: Printed, has_epochs: bool) -> DraftPattern | None:
    parts = list(_first_line(printed.parts))
    kinds = _kinds(parts)
    if not has_epochs:
        # Without passes over the data, ``i`` counts the steps of the whole training.
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
    # The text behind the last number has no meaning, and may change.
    pattern = pattern[: pattern.rindex(")") + 1]
    return DraftPattern(pattern, steps, units, printed.line)


def _first_line(parts: tuple[str | tuple[str, str], ...]) -> Iterable[str | tuple[str, str]]:
    begun = False
    for part in parts:
        if not isinstance(part, str):
            begun = True
            yield part
            continue
        text = part if begun else part.lstrip("\n\r")
        head, newline, _ = text.partition("\n")
        if head:
            begun = True
            yield head
        if newline:
            return


def _kinds(parts: list[str | tuple[str, str]]) -> list[str]:
    """For each part its `_kind`, and "total" for the total of the part before it."""
    kinds = [_kind(parts, index) if isinstance(part, tuple) else "" for index, part in enumerate(parts)]
    for index, part in enumerate(parts):
        if isinstance(part, tuple) and not _is_plain(parts, index) and index > 1 and kinds[index - 2]:
            kinds[index] = "total"
    return kinds


def _kind(parts: list[str | tuple[str, str]], index: int) -> str:
    """Whether a value is an epoch, a step or the place in a pass; "" where it is none."""
    expression = _identifier(parts[index][0]) if isinstance(parts[index], tuple) else ""
    word = _word_before(parts, index)
    for found in (expression, word):
        if found in _EPOCHS and _is_plain(parts, index):
            return "epoch"
        if found in _PLACES or found.endswith("_idx"):
            return "place"
        if found in _STEPS:
            return "step"
    return ""


def _group(kinds: list[str], index: int, has_epoch: bool) -> str:
    """The name of a group that is a step, an epoch or how many there are; "" for others. Called in order."""
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


def _is_plain(parts: list[str | tuple[str, str]], index: int) -> bool:
    """Not how many epochs there are: ``/10`` behind another."""
    before = parts[index - 1] if index else ""
    return not (isinstance(before, str) and before.rstrip().endswith(("/", " of")))


def _identifier(expression: str) -> str:
    """The telling part of an expression: ``loss`` of ``loss.item() * scale``, ``lr`` of ``groups[0]["lr"]``."""
    key = re.search(r"\[['\"](\w+)['\"]\]\s*$", expression)
    if key is not None:
        return key[1].lower()
    text = re.sub(r"\.(item|detach|cpu|mean|tolist|get_last_lr|compute|val|avg|float)\(?\)?(\[\d+\])?", "", expression)
    text = re.sub(r"^(float|int|round|len|sum|min|max)\(", "", text)
    for piece in re.split(r"[-+*/%(\[,]", text):
        if words := re.findall(r"[A-Za-z_]\w*", piece):
            return str(words[-1]).lower()
    return ""


def _word_before(parts: list[str | tuple[str, str]], index: int) -> str:
    before = parts[index - 1] if index else ""
    match = re.search(r"([A-Za-z_]\w*)\W*$", before) if isinstance(before, str) else None
    return match[1].lower() if match is not None else ""


def _label(parts: list[str | tuple[str, str]], index: int) -> str:
    """The name of a metric: the text before the number, else the script's name for it; "" where it is none."""
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
    """As `re.escape`, but for what means itself outside of brackets."""
    escaped = re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text)
    return re.sub(r"\s+", lambda match: " " if match[0] == " " else "\\s+", escaped)
