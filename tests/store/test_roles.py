"""The metrics of a run that are its losses: by their names, and as they are stored."""

from __future__ import annotations

from pathlib import Path

from gputui.store.metrics.queries import reported_values
from gputui.store.metrics.roles import (
    FIRST_LINES,
    MetricRoles,
    metric_roles,
    set_roles,
    stored_names,
    training_loss,
    validation_loss,
    without_loss_words,
)
from tests.metrics.conftest import RUN, MetricsHome, line
from tests.tables import table
from tests.texts import mentions


def stored_roles(home: MetricsHome) -> tuple[str | None, str | None]:
    """The stored names after all lines are read."""
    home.pump()
    roles = metric_roles(home.connection, RUN)
    return roles.training, roles.validation


def write(home: MetricsHome, steps: range, **values: float) -> None:
    home.append("".join(line(step, **values).replace('"loss"', '"other"') for step in steps))


@table(
    "names, training, validation",
    [
        # One metric, however it is written.
        *((name, name, None) for name in ("loss", "Loss", "train_loss", "train/loss", "Loss/train", "loss/train")),
        *((name, name, None) for name in ("training loss", "trainLoss", "train.loss", "train-loss", "lm loss", "L")),
        *((name, name, None) for name in ("total_loss", "Train/total_loss", "avg_loss", "train_loss_step", "nll")),
        *((name, None, name) for name in ("val_loss", "val/loss", "Loss/val", "valid loss", "eval_loss", "test/loss")),
        *(
            (name, None, name)
            for name in ("validation_loss", "loss_val", "dev-loss", "Test Loss", "validation_0-logloss")
        ),
        # The better of several names, in any order.
        ("acc, train_loss, loss", "loss", None),
        ("L, total_loss, lm-loss", "lm-loss", None),
        ("train_loss_epoch, train_loss_step", "train_loss_step", None),
        ("test_loss, eval_loss, val_loss, train/loss", "train/loss", "val_loss"),
        ("test_loss, loss", "loss", "test_loss"),
        ("train/loss, train/value_loss, train/policy_gradient_loss", "train/loss", None),
        # The only one that is a loss at all, but no guess among several.
        ("acc, mlm_loss", "mlm_loss", None),
        ("lr, loss_scale, losses/dice", "losses/dice", None),
        ("d_loss, g_loss", None, None),
        ("losses/value_loss, losses/policy_loss, losses/entropy", None, None),
        # None of these is a loss.
        ("lr, loss_scale, accuracy, grad_norm", None, None),
        ("r, l, t", None, None),
        ("val/accuracy, latest, glossary", None, None),
    ],
)
def test_losses_by_their_names(names: str, training: str | None, validation: str | None) -> None:
    listed = names.split(", ")
    assert (training_loss(listed), validation_loss(listed)) == (training, validation)
    assert (training_loss(listed[::-1]), validation_loss(listed[::-1])) == (training, validation)


def test_a_better_name_counts_among_the_first_lines_only(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path, in_memory=True)
    home.begin()
    write(home, range(3), L=0.5)
    assert stored_roles(home) == ("L", None)
    write(home, range(3, 6), train_loss=0.5)
    assert stored_roles(home) == ("train_loss", None)
    write(home, range(6, FIRST_LINES), L=0.5)
    assert stored_roles(home) == ("train_loss", None)
    home.restart()
    home.steps(*range(FIRST_LINES, FIRST_LINES + 3))
    write(home, range(60, 62), eval_loss=0.5)
    assert stored_roles(home) == ("train_loss", "eval_loss"), "only what was unknown is added"


def test_a_validation_loss_stands_in_until_there_is_another(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path, in_memory=True)
    home.begin()
    write(home, range(FIRST_LINES + 1), val_loss=0.5)
    assert stored_roles(home) == (None, "val_loss")
    assert metric_roles(home.connection, RUN).loss == "val_loss"
    write(home, range(60, 62), loss_ce=0.5)
    home.steps(62)
    assert stored_roles(home) == ("loss", "val_loss")


def test_a_name_that_a_person_gave_stays(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path, in_memory=True)
    set_roles(home.connection, RUN, "d/real", "val/acc", "max")
    home.begin()
    home.steps(*range(FIRST_LINES))
    assert stored_roles(home) == ("d/real", None)
    assert metric_roles(home.connection, RUN) == MetricRoles("d/real", validation=None, best="val/acc", mode="max")


def test_metrics_without_a_loss_are_told_once(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path, in_memory=True)
    home.begin()
    write(home, range(FIRST_LINES - 1), accuracy=0.5)
    assert home.notes() == []
    write(home, range(FIRST_LINES, FIRST_LINES + 100), accuracy=0.5)
    (note,) = home.notes()
    assert "other, accuracy" in note
    assert f"metrics {RUN} --loss" in note
    write(home, range(200, 300), accuracy=0.5)
    assert home.notes() == []
    names = stored_names(home.connection, RUN)
    assert without_loss_words(RUN, metric_roles(home.connection, RUN), names) == note
    set_roles(home.connection, RUN, "accuracy", best=None, mode=None)
    assert without_loss_words(RUN, metric_roles(home.connection, RUN), names) is None


def test_studies_ask_for_the_loss_whatever_it_is_called(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path, in_memory=True)
    home.begin()
    home.append('{"step": 1, "train/loss": 0.5, "val_loss": 0.75}\n')
    home.pump()
    values, _ = reported_values(home.connection, RUN, ["loss", "val/loss", "train/loss"], "step", {})
    assert [(value.metric, value.value) for value in values] == [("loss", 0.5), ("val/loss", 0.75), ("train/loss", 0.5)]


def test_a_given_name_that_no_metric_has_is_told(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path, in_memory=True)
    set_roles(home.connection, RUN, "trian/loss", best=None, mode=None)
    home.begin()
    home.steps(*range(FIRST_LINES))
    (note,) = home.notes()
    assert mentions(note, "trian/loss")
