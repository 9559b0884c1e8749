"""The steps of learned lines: of a resumed script, of several trainings in one output, and of places of other kinds."""

from __future__ import annotations

from collections.abc import Iterable

from tests.tables import table

from .watching import watch


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


@table(("lines", "expected"), [
    (epochs("Epoch {e}/10 loss {v}", range(5, 11)), [*range(5, 11)]),
    (epochs("Epoch {e}/10\n36/36 - 1s - {e}ms/step - loss: {v}", range(5, 11)), [36 * e for e in range(5, 11)]),
    (places("Epoch {e}/10 [{b}/100] loss {v}", (5, 6), (20, 60, 100)), [420, 460, 500, 520, 560, 600]),
    (places("Epoch: [{e}][{b}/100] loss {v}", (5, 6), (20, 60, 99)), [420, 460, 499, 520, 560, 599]),
    (places("Epoch: [{e}][{b}/100] loss {v}", (0, 1), (20, 60, 99)), [20, 60, 99, 120, 160, 199]),
])  # fmt: skip
def test_a_resumed_script_counts_from_the_epoch_that_it_prints(lines: list[str], expected: list[int]) -> None:
    assert steps(lines) == expected
