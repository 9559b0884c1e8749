"""The metrics with a meaning of their own: a run's training loss, its validation loss, and what it is judged by.

Names are compared by their words, whatever separates them: ``Loss/train``, ``train_loss`` and ``trainLoss`` are one.
A run's losses are chosen among its first lines and then stay, so that every reader uses the same names.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import orjson
from msgspec import Struct

from gputui.store.metrics.stored_lines import NOT_METRICS

LOSS = "loss"
"""The name by which programs ask for the training loss of a run, whatever the run calls it."""
VALIDATION_LOSS = "val/loss"
"""The same for its validation loss."""
BEST = "best"
"""The same for the metric that it is judged by."""

FIRST_LINES = 50
"""Among so many lines a better name still takes the place of a chosen one."""

Mode = Literal["min", "max"]

# The usual names of a loss without the words for its part of the data, the best first.
_FORMS: tuple[frozenset[str], ...] = tuple(
    frozenset(form.split())
    for form in (
        "loss", "lm loss", "total loss", "avg loss", "average loss", "mean loss", "running loss",
        "step loss", "batch loss", "iter loss", "epoch loss", "nll loss", "ce loss", "logloss", "mlogloss",
        "L", "nll", "cross entropy", "cost",
    )
)  # fmt: skip
_TRAINING = frozenset({"train", "training", "trainer", "tr"})
# The words for the parts of the data that are held out, the best first.
_HELD_OUT: tuple[frozenset[str], ...] = (
    frozenset({"val", "valid", "validation"}),
    frozenset({"eval", "evaluation"}),
    frozenset({"dev"}),
    frozenset({"holdout", "heldout"}),
    frozenset({"test", "testing"}),
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NO_MEASUREMENT = NOT_METRICS | {"event", "phase", "epoch", "total_steps"}

_COLUMNS = "training, validation, best, mode"

_MOST_NAMES = 8  # more would not be read in a message


class _LossName(NamedTuple):
    """What the words of a name say. ``part`` is the place in _HELD_OUT, None for training; ``form`` the place in
    _FORMS, None for an unusual one."""

    part: int | None
    form: int | None
    is_training: bool
    is_loss: bool


@lru_cache(maxsize=4096)
def _read_name(name: str) -> _LossName:
    pieces = [_plain(word) for word in _WORD.findall(name)]
    part = next((place for place, of_part in enumerate(_HELD_OUT) if not of_part.isdisjoint(pieces)), None)
    parts = _TRAINING if part is None else _HELD_OUT[part]
    form = frozenset(piece for piece in pieces if piece not in parts)
    form_place = _FORMS.index(form) if form in _FORMS else None
    # A loss_scale is none, loss/ce is one.
    is_loss = bool(pieces) and (pieces[-1].endswith("loss") or name.lower().startswith(("loss/", "losses/")))
    is_training = not _TRAINING.isdisjoint(pieces)
    return _LossName(part, form_place, is_training, is_loss)


def _plain(word: str) -> str:
    # A single letter keeps its case: an L is a loss, an l a length.
    if len(word) == 1:
        return word
    if word.lower() == "losses":
        return "loss"
    return word.lower()


def is_held_out(name: str) -> bool:
    """Return whether a metric is of data that is held out from training, such as ``val/accuracy``."""
    return _read_name(name).part is not None


def training_loss(names: Iterable[str]) -> str | None:
    """The training loss among a run's metrics: the best of the usual names, else the only name of a loss."""
    return _best_loss([name for name in names if not is_held_out(name)])


def validation_loss(names: Iterable[str]) -> str | None:
    """The same of a loss of data that is held out."""
    return _best_loss([name for name in names if is_held_out(name)])


def _best_loss(names: Sequence[str]) -> str | None:
    ranks: dict[str, tuple[int, int, bool]] = {}
    for name in names:
        part, form, is_training, _ = _read_name(name)
        if form is not None:
            ranks.setdefault(name, (part or 0, form, is_training))
    if ranks:
        return min(ranks, key=lambda name: ranks[name])
    losses = [name for name in names if _read_name(name).is_loss]
    if len(losses) == 1:
        return losses[0]
    return None


class MetricRoles(Struct, frozen=True):
    """The names of a run's metrics by what they mean; None is unknown.

    Attributes:
        training: the training loss.
        validation: the loss of data that is held out.
        best: the metric that the run is judged by; None if its profile does not say so.
        mode: whether less or more of ``best`` is better; None without ``best``.
    """

    training: str | None = None
    validation: str | None = None
    best: str | None = None
    mode: Mode | None = None

    @property
    def loss(self) -> str | None:
        """The loss that is watched and shown: that of the training or, without one, the other."""
        return self.training or self.validation

    @property
    def names(self) -> Mapping[str, str]:
        """The run's own names by those that programs ask for."""
        pairs = ((LOSS, self.loss), (VALIDATION_LOSS, self.validation), (BEST, self.best))
        return {general_name: name for general_name, name in pairs if name is not None}


NO_ROLES = MetricRoles()
USUAL_ROLES = MetricRoles(LOSS, VALIDATION_LOSS)
"""Those of a run that uses gputui's own vocabulary."""


def metric_roles(connection: sqlite3.Connection, run_id: str) -> MetricRoles:
    """The roles of one run's metrics as far as they are known. Raises sqlite3.Error."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM metric_roles WHERE run_id = ?", (run_id,)).fetchone()  # noqa: S608
    if row is None:
        return MetricRoles()
    return MetricRoles(*row)


def set_roles(
    connection: sqlite3.Connection, run_id: str, loss: str | None, best: str | None, mode: Mode | None
) -> None:
    """Store what a person says of a run's metrics, inside the caller's transaction; ``loss`` None says nothing of it.
    Raises sqlite3.Error."""
    connection.execute(
        "INSERT INTO metric_roles (run_id, training, is_given, best, mode) VALUES (?, ?, ?, ?, ?) ON CONFLICT (run_id) "
        "DO UPDATE SET training = coalesce(excluded.training, training), is_given = max(excluded.is_given, is_given), "
        "best = excluded.best, mode = excluded.mode",
        (run_id, loss, loss is not None, best, mode),
    )


def take_names(connection: sqlite3.Connection, source_id: int, names: Collection[str]) -> str | None:
    """Choose a run's losses as far as the names of a source's new lines tell, inside the transaction that stores
    them. Returns once, when the first lines are over without a loss, a sentence that says so. Raises sqlite3.Error."""
    run_id, training, validation, is_given, is_settled = connection.execute(
        "SELECT s.run_id, o.training, o.validation, coalesce(o.is_given, 0), coalesce(o.is_settled, 0) "
        "FROM metric_sources AS s LEFT JOIN metric_roles AS o USING (run_id) WHERE s.source_id = ?",
        (source_id,),
    ).fetchone()
    missing_names = [
        choose(names) for name, choose in ((training, training_loss), (validation, validation_loss)) if name is None
    ]
    if is_settled and not any(missing_names):
        return None
    all_names = stored_names(connection, run_id)
    (line_count,) = connection.execute(
        "SELECT sum(line_count) FROM metric_sources WHERE run_id = ?", (run_id,)
    ).fetchone()
    is_over = line_count >= FIRST_LINES
    if not is_given and (training is None or not is_settled):
        training = training_loss(all_names)
    if validation is None or not is_settled:
        validation = validation_loss(all_names)
    connection.execute(
        "INSERT INTO metric_roles (run_id, training, validation, is_settled) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (run_id) DO UPDATE SET training = excluded.training, validation = excluded.validation, "
        "is_settled = excluded.is_settled",
        (run_id, training, validation, is_over),
    )
    roles = MetricRoles(training, validation)
    if is_over and not is_settled:
        return without_loss_words(run_id, roles, all_names)
    return None


def stored_names(connection: sqlite3.Connection, run_id: str) -> list[str]:
    """The names of a run's metrics, in the order of first appearance. Raises sqlite3.Error."""
    rows = connection.execute(
        "SELECT n.data FROM metric_newest AS n JOIN metric_sources AS s USING (source_id) WHERE s.run_id = ? "
        "ORDER BY n.source_id, n.attempt, n.rank",
        (run_id,),
    )
    names = dict.fromkeys(name for (data,) in rows.fetchall() for name in orjson.loads(data))
    # SQLite's paths cannot name a key with a quote.
    return [name for name in names if name not in _NO_MEASUREMENT and '"' not in name]


def without_loss_words(run_id: str, roles: MetricRoles, names: Sequence[str]) -> str | None:
    """A sentence about a run whose metrics have no loss; None if they have one, or if there are none yet."""
    if not names or roles.loss in names:
        return None
    listed = ", ".join(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        listed += ", …"
    what = "its metrics have no loss"
    if roles.loss is not None:
        what = f"its loss {roles.loss} is not among its metrics"
    how = f"gputui metrics {run_id} --loss NAME names it, as metrics: {{loss: NAME}} does in a profile"
    return f"{what} ({listed}), so that nothing watches it; {how}"
