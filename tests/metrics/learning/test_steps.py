"""The steps of learned lines: of a resumed script, of several trainings in one output, and of places of other kinds."""

from __future__ import annotations

from collections.abc import Iterable

from tests.tables import table

from .watching import watch

FOLD = range(1, 9)
STEPS = range(10, 101, 10)
IN_EPOCHS = (20, 60, 100)

LOSS = "{{'loss': {v}, 'epoch': {e}}}"
EVALUATED = "{{'eval_loss': {v}}}"


def steps(lines: Iterable[str]) -> list[int]:
    return [record["step"] for record in watch("\n".join(lines)).records]


def epochs(form: str, numbers: Iterable[int]) -> list[str]:
    """A line for each epoch, ``{e}`` being its number and ``{v}`` a value."""
    return [form.format(e=number, v=f"{1 / (number + 1):.3f}") for number in numbers]


def places(form: str, numbers: Iterable[int], within: Iterable[int]) -> list[str]:
    """Lines within epochs, ``{b}`` being the place."""
    return [
        form.format(e=number, b=place, v=f"{1 / (number * 100 + place + 1):.4f}")
        for number in numbers
        for place in within
    ]


def bars(total: int, line: str = "") -> str:
    """A bar of a training, with a line above it each ten steps."""
    text = ""
    for place in range(1, total + 1):
        drawn = f"\r{100 * place // total}%|###  | {place}/{total} [00:{place % 60:02d}<00:09, 9.1it/s]"
        text += drawn
        if line and place % 10 == 0:
            text += f"\r{' ' * 40}\r{line.format(v=round(1 / place, 4), e=place / 50)}\n{drawn}"
    return text + "\n"


@table(("lines", "expected"), [
    (epochs("Epoch {e}/10 loss {v}", range(5, 11)), [*range(5, 11)]),
    (epochs("Epoch {e}/10\n36/36 - 1s - {e}ms/step - loss: {v}", range(5, 11)), [36 * e for e in range(5, 11)]),
    (places("Epoch {e}/10 [{b}/100] loss {v}", (5, 6), (20, 60, 100)), [420, 460, 500, 520, 560, 600]),
    (places("Epoch: [{e}][{b}/100] loss {v}", (5, 6), (20, 60, 99)), [420, 460, 499, 520, 560, 599]),
    (places("Epoch: [{e}][{b}/100] loss {v}", (0, 1), (20, 60, 99)), [20, 60, 99, 120, 160, 199]),
])  # fmt: skip
def test_a_resumed_script_counts_from_the_epoch_that_it_prints(lines: list[str], expected: list[int]) -> None:
    assert steps(lines) == expected


@table(("lines", "expected"), [
    # One form: the trainings of several folds.
    (epochs("Epoch {e} loss {v}", [*FOLD, *FOLD]), [*range(1, 17)]),
    (epochs("Epoch {e}/2 loss {v}", [1, 2, 1, 2, 1, 2]), [*range(1, 7)]),
    (epochs("Fold 1 | Epoch {e} | loss {v}", FOLD) + epochs("Fold 2 | Epoch {e} | loss {v}", FOLD), [*range(1, 17)]),
    (epochs("Epoch {e}/8\n36/36 - 1s - {e}ms/step - loss: {v}", [*FOLD, *FOLD]), [*range(36, 577, 36)]),
    (epochs("Epoch {e}/7\n-----\ntrain Loss: {v}", [*range(8), *range(8)]), [*range(16)]),
    (epochs("step {e} loss {v}", [*STEPS, *STEPS]), [*range(10, 201, 10)]),
    (epochs("iter {e}: loss {v}", [*range(0, 100, 10)] * 2), [*range(0, 200, 10)]),
    (epochs("[{e}]\ttrain-rmse:{v}", [*range(60)] * 3), [*range(180)]),
    (places("Epoch {e} [{b}/100] loss {v}", [1, 2, 1, 2], IN_EPOCHS),
     [begin + place for begin in (0, 100, 200, 300) for place in IN_EPOCHS]),
    (epochs("step {e}/200 loss {v}", range(10, 201, 10)) + epochs("step {e}/50 loss {v}", range(5, 51, 5)),
     [*range(10, 201, 10), *range(205, 251, 5)]),
    # Two forms, one after the other.
    (epochs("iter {e}: loss {v}", range(0, 200, 10)) + epochs("Epoch {e}: train_loss {v}", FOLD),
     [*range(0, 200, 10), *range(191, 199)]),
    (epochs("iter {e}: loss {v}", range(0, 200, 10)) + epochs("Epoch {e}: loss {v}", FOLD),
     [*range(0, 200, 10), *range(191, 199)]),
    (epochs("Epoch {e}: loss {v}", FOLD) + epochs("iter {e}: loss {v}", range(0, 200, 10)),
     [*FOLD, *range(9, 200, 10)]),
    (epochs("Epoch {e}: loss {v}", FOLD) + epochs("iter {e}: loss {v}", range(10, 200, 10)),
     [*FOLD, *range(10, 200, 10)]),
    (places("Epoch {e} [{b}/100] loss {v}", (1, 2), IN_EPOCHS) + epochs("finetune epoch {e} loss {v}", FOLD),
     [*(begin + place for begin in (0, 100) for place in IN_EPOCHS), *range(201, 209)]),
    (epochs("[pretrain] step {e}/200 loss {v}", range(10, 201, 10))
     + epochs("[tune] step {e}/50 loss {v} acc {v}", range(5, 51, 5)),
     [*range(10, 201, 10), *range(205, 251, 5)]),
    # Names of its own have steps of their own.
    (epochs("step {e}/200 loss {v}", range(10, 201, 10)) + epochs("step {e}/50 reward {v}", range(5, 51, 5)),
     [*range(10, 201, 10), *range(5, 51, 5)]),
])  # fmt: skip
def test_a_training_behind_another_counts_on(lines: list[str], expected: list[int]) -> None:
    assert steps(lines) == expected


@table(("lines", "expected"), [
    # Summaries of epochs, lines of other ranks, and a script that goes back to a checkpoint.
    ([line for e in (1, 2, 3) for line in [*places("Epoch {e} [{b}/100] loss {v}", (e,), IN_EPOCHS),
                                           *epochs("Epoch {e} val acc {v}", (e,))]],
     [e * 100 + step for e in (0, 1, 2) for step in (20, 60, 100, 100)]),
    (epochs("step {e} loss {v}", [1, 2, 3, 4, 3, 4, 5, 6, 5, 6, 7]), [*range(1, 8)]),
    (epochs("step {e} loss {v}", [*STEPS, 60, 70, 80]), [*STEPS, 60, 70, 80]),
])  # fmt: skip
def test_a_training_that_goes_on_does_not_begin_again(lines: list[str], expected: list[int]) -> None:
    assert steps(lines) == expected


@table(("batch", "form", "within", "expected"), [
    (64, "Training Epoch: {e} [{b}/192 ({b}.5%)]\tLoss: {v}\tLR: 0.1", (64, 128, 192), (1, 2, 3)),
    # Without its share, it may be the steps.
    (64, "Training Epoch: {e} [{b}/192]\tLoss: {v}\tLR: 0.1", (64, 128, 192), (64, 128, 192)),
    (32, "Epoch: {e} [{b}/5004] Loss {v}", (64, 128, 192), (64, 128, 192)),
    (128, "Train Epoch: {e} [{b}/500 (1%)] Loss: {v}", (128, 256, 384, 500), (1, 2, 3, 4)),
    (64, "Train Epoch: {e} [{b}/6000 (1%)] Loss: {v}", (0, 640, 1280, 1920), (0, 10, 20, 30)),
    # What a batch is must be known.
    (None, "Train Epoch: {e} [{b}/6000 (1%)] Loss: {v}", (0, 640, 1280, 1920), (0, 640, 1280, 1920)),
    (48, "Train Epoch: {e} [{b}/6000 (1%)] Loss: {v}", (0, 640, 1280, 1920), (0, 640, 1280, 1920)),
    # Batches, every 100th of which has a line, and steps.
    (100, "Epoch {e} [{b}/1000] loss {v}", (100, 200, 300), (100, 200, 300)),
    (50, "Epoch {e} [{b}/1000] loss {v}", (100, 200, 300), (100, 200, 300)),
    (1, "Epoch {e} [{b}/100] loss {v}", (16, 32, 48), (16, 32, 48)),
    (64, "epoch {e} | {b}/1000 batches | loss {v}", (64, 128, 192), (64, 128, 192)),
    (64, "epoch {e} step {b}/1000 loss {v}", (64, 128, 192), (64, 128, 192)),
])  # fmt: skip
def test_places_in_samples_are_counted_in_batches(
    batch: int | None, form: str, within: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    records = watch("\n".join(places(form, (1, 2), within)), batch_size=batch).records
    assert [record["step"] for record in records][: len(within)] == [*expected]


def test_no_value_is_lost_where_places_of_longer_epochs_are_converted() -> None:
    first = watch("\n".join(places("Epoch {e} [{b}/20] loss {v}", (1, 2), range(1, 21))))
    longer = places("Epoch {e} [{b}/27] loss {v}", (1, 2), range(1, 28))
    records = watch("\n".join(longer), first.reader.learned.for_next_attempt).records
    assert len(records) == 54
    assert [record["step"] for record in records] == [
        (epoch * 20) + place * 20 // 27 for epoch in (0, 1) for place in range(1, 28)
    ]


def test_a_test_line_has_names_and_the_step_of_the_training() -> None:
    form = "Training Epoch: {e} [{b}/192 (1%)]\tLoss: {v}\tLR: 0.1"
    test = "Test set: Epoch: {e}, Average loss: {v}, Accuracy: 0.01"
    lines = [line for e in (1, 2, 3) for line in [*places(form, (e,), (64, 128, 192)), *epochs(test, (e,))]]
    records = [record for record in watch("\n".join(lines), batch_size=64).records if "loss" not in record]
    assert [(record["step"], record["test/loss"], record["test/accuracy"]) for record in records] == [
        (3, 0.5, 0.01), (6, 0.333, 0.01), (9, 0.25, 0.01)
    ]  # fmt: skip


@table(("text", "expected"), [
    (bars(100, LOSS) + bars(50, LOSS), [*range(10, 151, 10)]),
    (bars(100, LOSS) + bars(100, LOSS), [*range(10, 201, 10)]),
    (bars(100, LOSS) + bars(200, LOSS), [*range(10, 301, 10)]),
    # An evaluation at the end, once more.
    (bars(100, f"{LOSS}\n{EVALUATED}") + bars(8) + "{'eval_loss': 0.6}\n",
     [step for step in range(10, 101, 10) for _ in (LOSS, EVALUATED)]),
])  # fmt: skip
def test_bars_of_trainings_behind_each_other(text: str, expected: list[int]) -> None:
    assert [record["step"] for record in watch(text).records] == expected


def test_epochs_of_another_length_behind_a_training() -> None:
    lines = [
        f"Epoch {epoch}/4\n{total}/{total} - 1s - loss: 0.{begin - epoch}"
        for total, begin in ((36, 90), (18, 70))
        for epoch in range(1, 5)
    ]
    assert steps(lines) == [*range(36, 289, 36)]


def test_a_validation_that_stands_still_is_stored_beside_a_training() -> None:
    test = "Test set: Epoch: {e}, Average loss: 0.0719, Accuracy: 0.0100"
    training = "Training Epoch: {e} [{b}/192 (1%)]\tLoss: {v}\tLR: 0.1"
    lines = [line for e in (1, 2, 3) for line in [*places(training, (e,), (64, 128, 192)), *epochs(test, (e,))]]
    records = [record for record in watch("\n".join(lines), batch_size=64).records if "test/loss" in record]
    assert [(record["step"], record["test/loss"], record["test/accuracy"]) for record in records] == [
        (step, 0.0719, 0.01) for step in (3, 6, 9)
    ]
    assert watch("\n".join(epochs(test, (1, 2, 3)))).records == []
