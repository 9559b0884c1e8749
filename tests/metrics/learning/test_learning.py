"""What is learned from the lines of programs, and what is not."""

from __future__ import annotations

import math
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gputui.metrics.contract import ParsedLine, Rejected
from gputui.metrics.learning.learned_state import LearnedState, Learning
from gputui.metrics.learning.lines import LearnedLines
from gputui.metrics.learning.whole_lines import WholeLines
from gputui.metrics.learning.words import Sense, meaning, normal_name
from tests.tables import table

from .forms import FORMS, Printed, Record
from .watching import lines_of, output, watch
from .without_metrics import LOGS

PREFIXES = {
    "time": "2026-11-28 10:00:01,123 ",
    "level": "INFO:root:",
    "logging": "2026-11-28 10:00:01,123 - train - INFO - ",
    "rank": "[rank0]: ",
    "torchrun": "[default0]:",
    "mpirun": "[1,0]<stdout>:",
    "ray": "(RayTrainWorker pid=1234, ip=10.0.0.7) ",
    "hydra": "[2026-11-28 10:00:01,123][__main__][INFO] - ",
    "rich": "[10:00:01] INFO     ",
    "loguru": "2026-11-28 10:00:01.123 | INFO     | __main__:main:12 - ",
    "absl": "I1128 10:00:01.123456 140231 train.py:26] ",
    "colours": "\x1b[32m",
}

WORDS = ["loss", "step", "acc", "val", "a", "b", "c", "d", "e", "1", "0.5", "3/4"]
HOSTILE: dict[str, Callable[[random.Random], str]] = {
    "another shape each": lambda chance: " ".join(chance.choices(WORDS, k=14)),
    "long": lambda chance: " ".join(chance.choices(WORDS, k=500))[:2000],
    "brackets": lambda chance: "[{(" * chance.randrange(300) + "loss 0.5",
    "numbers": lambda chance: "1 " * chance.randrange(900),
    "digits": lambda chance: "9" * 2000,
    "commas": lambda chance: "loss " + "1," * 900,
    "spaces": lambda chance: "loss" + " " * 1900 + "5",
    "open boxes": lambda chance: f"| loss{chance.random()} | 0.5 |",
    "open dictionaries": lambda chance: "{" * chance.randrange(9) + "'loss': 0.5,",
    "bars": lambda chance: f"{chance.randrange(99)}%|" + "█" * chance.randrange(900) + f"| {chance.randrange(9**9)}/5",
    "pids": lambda chance: f"(A pid={chance.randrange(10**9)}) {{'loss': 0.5",
    "bytes": lambda chance: chance.randbytes(200).decode("latin-1").replace("\n", ""),
}

BEGINNINGS = [
    "", "loss ", "step 1 loss 0.5 ", "step 1 loss 0.5 [", "| loss | ", "{'loss': ", 'loss: "', "a='", "(A pid=1", "9%|",
    "[rank0", "/", "█",
]  # fmt: skip
REPEATED = [
    "|", "| ", "|9", "9", "9.", "9,", "9 ", "9, ", "0.5,", "9m", "9:", "9/", "9 of ", ".", ",000", "[", "(", "{", "[=",
    "]", " ", "\t", "'", '"', "' ", "a", "f", "é", "a.", "a-", "a1", "a 9|.[\"' ", "/a", "a.py", "INFO ", "a - ", "█ ",
    "tensor(1,", "1.5it/s ",
]  # fmt: skip

PIECES = st.sampled_from([
    "loss", "Loss:", "step", "epoch", "=", ":", " ", "  ", "\t", "|", "[", "]", "(", ")", "{", "}", "'", '"', "/", "%",
    "-", "0.5", "12", "3/10", "nan", "1e-5", "1,234", "val", "train", "━━", "█", "tensor(", "10:00:01", "12.3MB/s",
    "---------", "|", "│ ", "9" * 17, "9" * 20, "9" * 400, "9" * 1_900, "k", ",000", "rank", "pid=", "(A ",
])  # fmt: skip

BAR = "{percent}%|###       | {place}/{total} [00:{place:02d}<00:09, 9.1it/s{values}]"


def without_epoch(record: Record) -> Record:
    return {name: value for name, value in record.items() if name != "epoch"}


def records(text: str) -> list[Record]:
    return [without_epoch(record) for record in watch(text).records]


def is_near(record: Record, expected: Record) -> bool:
    """Return whether a record is as expected; it may have a total more."""
    extra = record.keys() - expected.keys() - {"total_steps"}
    return not extra and all(
        name in record and math.isclose(record[name], value, rel_tol=1e-9) for name, value in expected.items()
    )


@pytest.fixture(scope="module")
def plain() -> dict[str, list[Record]]:
    """The records of each form, with nothing around its lines."""
    return {name: watch(output(form())).records for name, form in FORMS.items()}


def bar(place: int, total: int = 50, values: str = "") -> str:
    return "\r" + BAR.format(percent=100 * place // total, place=place, total=total, values=values)


def behind_bars(form: str, values: str, printed_at: int) -> str:
    text = ""
    for epoch in range(1, 7):
        for place in range(1, 51):
            text += bar(place, values=values.format(place=place))
            if place == printed_at:
                # Now and then a newline stands between the two.
                text += "\n" if epoch == 4 else ""
                text += form.format(epoch=epoch, place=place, loss=f"0.{90 - epoch}5") + "\n"
    return text


@table(("name", "form"), FORMS.items())
def test_each_form_is_learned(name: str, form: Callable[[], Iterator[Printed]]) -> None:
    printed = list(form())
    expected = [part.record for part in printed if part.record is not None]
    unexpected = records(output(printed))
    missing = []
    for record in expected:
        match = next((line for line in unexpected if is_near(line, record)), None)
        if match is None:
            missing.append(record)
        else:
            unexpected.remove(match)
    assert not unexpected, (missing[:3], unexpected[:3])
    assert len(missing) <= 0.02 * len(expected), (missing[:3], unexpected[:3])


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_stands_before_a_line_changes_nothing(prefix: str, plain: dict[str, list[Record]]) -> None:
    wrong = []
    for name, form in FORMS.items():
        text = "\n".join(PREFIXES[prefix] + line for line in lines_of(output(form())) if line)
        if watch(text).records != plain[name]:
            wrong.append(name)
    assert not wrong


@pytest.mark.parametrize("tag", ["", "[rank{}]: ", "[default{}]:", "[Rank {}] ", "[1,{}]<stdout>:"])
def test_ranks_that_print_the_same_are_one(tag: str, plain: dict[str, list[Record]]) -> None:
    of_ranks = {name: form for name, form in FORMS.items() if tag or name not in ("SB3", "dictionaries")}
    wrong = []
    for name, form in of_ranks.items():
        lines = [line for line in lines_of(output(form())) if line]
        if watch("\n".join(tag.format(rank) + line for line in lines for rank in (0, 1))).records != plain[name]:
            wrong.append(name)
    assert not wrong


def test_noise_between_the_lines_changes_nothing(plain: dict[str, list[Record]]) -> None:
    # These are headers of epochs, beside a training.
    headers = ("epochs only", "learning rates")
    noise = [line for name, log in LOGS.items() if name not in headers for line in lines_of(log)]
    chance = random.Random(3)
    wrong = []
    for name, form in FORMS.items():
        lines = []
        for part in form():
            begin = chance.randrange(len(noise))
            count = chance.choice((0, 0, 1, 3))
            lines += [*noise[begin : begin + count], *lines_of(part.text)]
        if watch("\n".join(lines)).records != plain[name]:
            wrong.append(name)
    assert not wrong


@table(("name", "log"), LOGS.items())
def test_nothing_is_learned_from_other_output(name: str, log: str) -> None:
    assert watch(log).records == []
    assert watch("\n".join(f"2026-11-28 10:00:01,123 INFO {line}" for line in lines_of(log))).records == []


@pytest.mark.parametrize("every", [1, 40])
def test_restarts_change_nothing(every: int, plain: dict[str, list[Record]]) -> None:
    wrong = [name for name, form in FORMS.items() if watch(output(form()), restart_every=every).records != plain[name]]
    assert not wrong


@table(("text", "value"), [
    ("0.51", 0.51), ("1e-3", 0.001), ("4.9E-04", 4.9e-4), (".5", 0.5), ("-2.5", -2.5), ("+1.5", 1.5), ("5", 5),
    ("1,234.5", 1234.5), ("12,345", 12345), ("0,531", 0.531), ("12,5", 12.5), ("1.2k", 1200.0), ("3M", 3e6),
    ("12.3%", 12.3), ("12.3 %", 12.3), ("nan", "NaN"), ("NaN", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity"),
    ("tensor(0.51)", 0.51), ("tensor(0.51, device='cuda:0', grad_fn=<NllLossBackward0>)", 0.51), ("tensor(nan)", "NaN"),
    ("np.float64(0.25)", 0.25), ("array(0.5, dtype=float32)", 0.5), ("0.\x1b[1m5\x1b[0m1", 0.51),
    ("\x1b[31m0.51\x1b[0m", 0.51), ("0.51 (0.60)", 0.51), ("0.51(0.60)", 0.51), ("0.51±0.01", 0.51),
    ("[0.51]", 0.51), ("'0.51'", 0.51),
])  # fmt: skip
def test_numbers(text: str, value: float | str) -> None:
    shapes = (
        watch("\n".join(f"step {step} loss {step / 7:.3f} acc 0.{step}" for step in range(9)))
        .reader.restarted()
        .learned
    )
    read_records = watch("\n".join([*(f"step {step} loss: {text}, acc 0.{step}" for step in range(9))]), shapes).records
    assert [record["loss"] for record in read_records] == [value] * 9


@table(("label", "name"), [
    ("loss", "loss"), ("Loss", "loss"), ("Acc@1", "acc@1"), ("lm loss", "lm_loss"), ("L", "L"),
    ("val loss", "val/loss"), ("Validation accuracy", "val/accuracy"), ("train loss", "train/loss"),
    ("Average loss", "loss"), ("train/CrossEntropy", "train/CrossEntropy"),
    ("eval_loss", "eval_loss"), ("valid_0's l2", "valid_0's_l2"), ("improved from", ""), ("loss is", "loss"),
    ("Test Average loss", "test/loss"), ("rollout/ep_rew_mean", "rollout/ep_rew_mean"),
])  # fmt: skip
def test_names(label: str, name: str) -> None:
    assert normal_name(tuple(label.split())) == name


@table(("name", "expected"), [
    ("loss", Sense.METRIC), ("val/loss", Sense.METRIC), ("train/epoch", Sense.EPOCH), ("lr", Sense.SETTING),
    ("global_step", Sense.STEP), ("trainer/global_step", Sense.STEP), ("time/total_timesteps", Sense.STEP),
    ("data_time", Sense.IGNORED), ("max_mem", Sense.IGNORED), ("best_val_loss", Sense.IGNORED),
    ("map50-95", Sense.METRIC), ("top5", Sense.METRIC), ("ms/batch", Sense.IGNORED), ("rank", Sense.RANK),
    ("chamfer", Sense.UNKNOWN), ("d_loss", Sense.METRIC), ("ep_rew_mean", Sense.METRIC),
])  # fmt: skip
def test_meanings(name: str, expected: Sense) -> None:
    assert meaning(name) is expected


def test_a_line_that_first_appears_after_hours_is_learned() -> None:
    lines = [f"iter {step}: loss {1 / (step + 1):.4f}" for step in range(6_000)]
    lines[4_000] = "validation loss 0.61"
    lines[5_000] = "validation loss 0.52"
    validated = [record for record in records("\n".join(lines)) if "val/loss" in record]
    assert validated == [{"step": 3_999, "val/loss": 0.61}, {"step": 4_999, "val/loss": 0.52}]


def test_the_last_number_may_have_lost_digits() -> None:
    reader = watch("\n".join(f"step {step} loss 0.{step}1" for step in range(1, 6))).reader
    assert isinstance(reader.parse_unterminated(b"step 6 loss 0.6"), Rejected)
    assert reader.parse_unterminated(b"step 6 lo") is None
    reader = watch("\n".join(f"step {step} loss 0.{step}1 ok" for step in range(1, 6))).reader
    assert isinstance(reader.parse_unterminated(b"step 6 loss 0.61 ok"), ParsedLine)


def test_the_next_attempt_counts_on_the_same_scale() -> None:
    form = "Epoch {} [{}/100] loss {:.3f}"
    first = watch(
        "\n".join(form.format(epoch, place, 1 / (place + epoch)) for epoch in (1, 2) for place in (20, 60, 90))
    )
    reader = LearnedLines(first.reader.learned.for_next_attempt)
    again = [reader.parse(form.format(2, place, 0.5).encode()) for place in (60, 90)]
    assert [line.step for line in again if isinstance(line, ParsedLine)] == [160, 190]


def test_places_that_begin_again_are_of_the_next_epoch() -> None:
    bars = [
        f"{batch}%|###  | {batch}/100 [00:01<00:01, 9.1it/s, loss={1 / (epoch + batch):.3f}]"
        for epoch in range(1, 4)
        for batch in range(0, 101, 10)
    ]
    assert [record["step"] for record in records("\r".join(bars))] == [
        *range(0, 101, 10), *range(110, 201, 10), *range(210, 301, 10)
    ]  # fmt: skip


def test_what_is_not_sure_is_said() -> None:
    watched = watch("\n".join(f"loss {1 / step:.4f} acc 0.{step}" for step in range(1, 20)))
    assert watched.records == []
    (remark,) = watched.reader.remarks
    assert "19 lines" in remark


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_log_costs_a_bounded_amount(kind: str) -> None:
    chance = random.Random(1)
    reader = LearnedLines()
    lines = [HOSTILE[kind](chance).encode() for _ in range(300)]
    for line in lines[:150]:
        reader.parse(line)
    tracemalloc.start()
    for line in lines[150:]:
        reader.parse(line)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 1 << 20
    assert len(msgspec.json.encode(reader.learned)) < 400_000


def test_a_long_line_is_read_in_milliseconds() -> None:
    line = "step {0} loss 0.{0}1 [{0},{0},{0},0.{0}] {0}, 0.5, 0.{0}, 1.5it/s a.py"
    learned = watch("\n".join(line.format(step) for step in range(1, 12))).reader.learned
    assert learned.shapes
    slow = []
    for beginning in BEGINNINGS:
        for repeated in REPEATED:
            for end in ("", " |", "!"):
                reader = LearnedLines(learned)
                begun = time.process_time()
                reader.parse((beginning + repeated * (3_900 // len(repeated)) + end).encode())
                if time.process_time() - begun > 0.5:
                    slow.append((beginning, repeated, end))
    assert not slow


def test_nothing_is_read_of_a_line_that_is_too_long() -> None:
    form = "step {} loss 0.{} {}"
    assert records("\n".join(form.format(step, step, "a" * 3_900) for step in range(1, 6)))
    assert not records("\n".join(form.format(step, step, "a" * 4_000) for step in range(1, 6)))
    assert not records("\n".join(form.format(step, step, "é" * 20_000) for step in range(1, 6)))


@table(("cells", "is_row"), [
    ("| loss | 0.5 |", True), ("|    loss    |   -1e-5 |  ", True), ("│ train/ │ │", True), ("┃ loss ┃ nan ┃", True),
    ("| top 5 | 0.5 |", False), ("| top5 | 0.5 |", True), ("| loss | about 5 |", False), ("| loss 0.5 |", False),
    ("| a | 1 | 2 |", False), ("a | loss | 0.5 |", False), ("| loss | 0.5 | a", False), ("|| 0.5 |", False),
])  # fmt: skip
def test_rows_of_boxes(cells: str, is_row: bool) -> None:
    assert (WholeLines().add(cells) is None) is is_row


@table(("text", "value"), [
    ("9" * 19, float("9" * 19)), ("9" * 400, "Infinity"), ("-" + "9" * 400, "-Infinity"), ("9" * 1_999, "Infinity"),
    ("9" * 400 + "k", "Infinity"), ("9" * 400 + ".5", "Infinity"), ("1e999", "Infinity"), ("9" * 3_900, "Infinity"),
])  # fmt: skip
def test_numbers_without_end(text: str, value: float | str) -> None:
    learned = watch("\n".join(f"step {step} loss 0.{step}" for step in range(1, 9))).reader.learned
    (record,) = watch(f"step 9 loss {text}", learned).records
    assert record["loss"] == value


@pytest.mark.parametrize("form", ["step {} loss 0.5", "Epoch {0} [{0}/{0}] loss 0.5"])
def test_steps_without_end_are_none(form: str) -> None:
    learned = watch("\n".join(form.replace("0.5", f"0.{step}").format(step) for step in range(1, 9))).reader.learned
    for digits in (17, 400, 1_200):
        watched = watch("\n".join([form.format("9" * digits)] * 4), learned)
        assert all(record["step"] < 10 for record in watched.records)
        assert msgspec.json.encode(watched.reader.learned)


def test_numbers_of_a_list_may_have_three_digits() -> None:
    lines = [f"{step},{step / 7:.3f},{100 + step} step {step} loss {1234.5 / step:,.2f}, ok" for step in range(90, 120)]
    assert [record["step"] for record in records("\n".join(lines))] == list(range(90, 120))


def test_learning_from_lines_that_never_come_again_ends() -> None:
    reader = LearnedLines(LearnedState(learning=Learning(characters=10**9)))
    before = reader.learned.learning.characters
    for number in range(300):
        reader.parse(f"{chr(97 + number % 26)}{chr(97 + number // 26)} loss {number}".encode())
    assert reader.learned.learning.characters == before
    for step in range(9):
        reader.parse(f"step {step} loss 0.{step}".encode())
    assert reader.has_news


@given(st.lists(st.lists(PIECES, max_size=14).map("".join), max_size=12), st.binary(max_size=40))
@example([f"loss {'9' * 400} step 1", f"Epoch {'9' * 400}"], b"loss 1")
@example([f"[rank{'9' * 400}]: step {step} loss 0.5{step}" for step in range(4)], b"loss 1")
@example([f"(A pid={'9' * 1_900}) loss 0.5"], f"[rank{'9' * 3_900}]: loss 1".encode())
def test_never_raises(lines: list[str], rest: bytes) -> None:
    reader = LearnedLines()
    for line in [*lines, *lines, *lines]:
        reader.parse(line.encode())
    reader.parse(rest)
    reader.parse_unterminated(rest)
    reader.conclude()
    again: Any = msgspec.json.decode(msgspec.json.encode(reader.learned), type=LearnedState)
    assert again == reader.learned
    assert all(isinstance(remark, str) for remark in reader.remarks)


@pytest.mark.parametrize("restart_every", [None, 1])
def test_a_line_written_above_a_bar_has_the_place_of_the_bar_drawn_next(restart_every: int | None) -> None:
    text = ""
    for step in range(1, 41):
        bar = f"{step * 2:3}%|▏         | {step}/50 [00:00<00:05, 18.08it/s]"
        if step % 5 == 0:
            # The bar on the screen is older, as tqdm draws it ten times a second.
            record = {"loss": f"{1 / step:.3f}", "epoch": f"{step / 20:.4f}"}
            text += "\r" + " " * 40 + f"\r{record}\n\r{bar}"
        elif step % 5 in (1, 3):
            text += f"\r{bar}"
    records = watch(text, restart_every=restart_every).records
    assert [(record["step"], record["total_steps"]) for record in records] == [(step, 50) for step in range(5, 41, 5)]


@table(("form", "values", "names"), [
    ("Epoch {epoch} loss {loss}", "", {"loss"}),
    ("Epoch {epoch} loss {loss}", ", gnorm=0.{place}", {"loss", "gnorm"}),
    ("   Epoch {epoch} loss {loss}", "", {"loss"}),
    ("loss: {loss}, acc: 0.{epoch}", "", {"loss", "acc"}),
    ("{{'loss': {loss}, 'epoch': {epoch}.5}}", "", {"loss"}),
    ("[{epoch}, {place}] loss: {loss}", "", {"loss"}),
])  # fmt: skip
def test_a_line_behind_a_bar_is_read(form: str, values: str, names: set[str]) -> None:
    """Printed while a bar is drawn, or behind one that was left without a newline."""
    for printed_at in (20, 50):
        records = watch(behind_bars(form, values, printed_at)).records
        losses = [record["loss"] for record in records if "loss" in record]
        assert losses == pytest.approx([0.905 - epoch / 100 for epoch in range(1, 7)])
        assert set().union(*records) >= names


def test_what_belongs_to_a_bar_stays_with_it() -> None:
    lines = [bar(place) + f" loss: 0.{100 - place}" for place in range(1, 51)]
    records = watch("".join(lines)).records
    assert [(record["step"], record["loss"]) for record in records] == [
        (place, float(f"0.{100 - place}")) for place in range(1, 51)
    ]


@table(
    "behind",
    [
        ", ",
        ",",
        "; ",
        ";",
        " | ",
        "|",
        " - ",
        " — ",
        "\t",
        "] ",
        ") ",
        "} ",
        ": ",
        ":",
        " : ",
        "  ",
        ". ",
        " > ",
        " -> ",
        " · ",
    ],
)
def test_what_stands_behind_a_count(behind: str) -> None:
    before = {"]": "[", ")": "(", "}": "{"}.get(behind[0], "")
    steps = range(1, 20)
    for count, has_total in (("step {}/100", True), ("step {}", False), ("step={}", False), ("{}/100", True)):
        lines = [f"{before}{count.format(step)}{behind}loss 0.{100 - step}1{behind}acc={step + 10.5}" for step in steps]
        total = {"total_steps": 100} if has_total else {}
        assert watch("\n".join(lines)).records == [
            {"step": step, **total, "loss": float(f"0.{100 - step}1"), "acc": step + 10.5} for step in steps
        ]


@table("behind", [", ", ",", ";", "|", "\t", "] ", ": ", ". "])
def test_what_stands_behind_an_epoch(behind: str) -> None:
    before = "[" if behind[0] == "]" else ""
    counts = [(epoch, place) for epoch in (1, 2, 3) for place in (50, 100, 150, 200)]
    lines = [
        f"{before}Epoch {epoch}/500{behind}{place}/200{behind}loss {index}.5"
        for index, (epoch, place) in enumerate(counts, 1)
    ]
    assert [(record["step"], record["loss"]) for record in watch("\n".join(lines)).records] == [
        (50 * index, index + 0.5) for index in range(1, 13)
    ]


def test_a_row_of_cells_between_bars() -> None:
    lines = ["| epoch | train loss | val loss | cp |", "|-------|------------|----------|----|"]
    lines += [f"| {epoch} | 0.{99 - epoch} | 0.{90 - epoch} | {'* ' if epoch % 2 else '  '}|" for epoch in range(1, 12)]
    assert watch("\n".join(lines)).records == [
        {"step": epoch, "epoch": epoch, "train/loss": float(f"0.{99 - epoch}"), "val/loss": float(f"0.{90 - epoch}")}
        for epoch in range(1, 12)
    ]
