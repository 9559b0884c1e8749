"""``gpus:`` and ``--gpus``: what they mean, on machines with and without GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gputui.machine.gpu_model import GpuFacts
from gputui.profiles.devices import Selection, SelectionError, parse_selection, request_gpus, shell_selection
from gputui.runs.spec import GpuRequest
from tests.tables import table
from tests.texts import mentions

UUIDS = [f"GPU-0000000{index}-aaaa-bbbb-cccc-dddddddddddd" for index in range(4)]
FOUR = [GpuFacts(uuid=uuid, index=index, name="H200") for index, uuid in enumerate(UUIDS)]
WITH_MIG = [*FOUR[:3], GpuFacts(uuid=UUIDS[3], index=3, name="H200", mig_mode=True)]


@table(
    ("value", "selection"),
    [
        (0, Selection()), (2, Selection(count=2)), ("2", Selection(count=2)), ("all", Selection(is_all=True)),
        ("0,1", Selection(devices=(0, 1))), (" 3 , 1 ", Selection(devices=(3, 1))),
        (["1", UUIDS[0]], Selection(devices=(1, UUIDS[0]))), (UUIDS[0], Selection(devices=(UUIDS[0],))),
        (f"{UUIDS[0]},{UUIDS[1]}", Selection(devices=(UUIDS[0], UUIDS[1]))),
    ],
)  # fmt: skip
def test_what_can_be_asked(value: object, selection: Selection) -> None:
    assert parse_selection(value) == selection


@table(
    ("text", "devices"),
    [
        ("1", (1,)), ("3, 0", (3, 0)), (UUIDS[2], (UUIDS[2],)),
        (f"GPU-00000001,{UUIDS[0]}", ("GPU-00000001", UUIDS[0])),
        # CUDA ignores every entry after the first one that names no GPU.
        ("", ()), ("-1", ()), ("NoDevFiles", ()), ("2,-1,0", (2,)),
    ],
)  # fmt: skip
def test_what_the_launching_shell_can_select(text: str, devices: tuple[int | str, ...]) -> None:
    assert shell_selection(text) == Selection(devices=devices)


def test_what_the_launching_shell_cannot_select_and_what_it_may_abbreviate() -> None:
    for text, phrase in (("MIG-1234", "MIG"), ("1,1", "twice")):
        with pytest.raises(SelectionError, match=phrase):
            shell_selection(text)
    assert request_gpus(shell_selection("GPU-00000002"), FOUR, memory_bytes=None) == GpuRequest(1, (UUIDS[2],))
    with pytest.raises(SelectionError, match="does not exist"):
        request_gpus(shell_selection("GPU-0000000"), FOUR, memory_bytes=None)


@table(
    "value",
    [True, None, -1, 5000, 1.5, 0.0, 1.0, "1.5", "0.0",
     "", ",", "two", "-1", "0,x", "0,,1", "9" * 40, [], [True], [-1], [[0]], {}, "0,0",
     "GPU-", "²"],
)  # fmt: skip
def test_what_cannot_be_asked(value: object) -> None:
    with pytest.raises(SelectionError) as caught:
        parse_selection(value)
    assert not caught.value.is_refusal


@table(
    ("value", "inventory", "request_"),
    [
        (0, None, GpuRequest()), (0, [], GpuRequest()), (2, FOUR, GpuRequest(2)), (2, None, GpuRequest(2)),
        ("all", FOUR, GpuRequest(4)), ("2,0", FOUR, GpuRequest(2, (UUIDS[2], UUIDS[0]))),
        (UUIDS[1], FOUR, GpuRequest(1, (UUIDS[1],))), (UUIDS[1], None, GpuRequest(1, (UUIDS[1],))),
        (3, WITH_MIG, GpuRequest(3)),
        (0.5, FOUR, GpuRequest(1, share=0.5)), ("0.25", None, GpuRequest(1, share=0.25)),
    ],
)  # fmt: skip
def test_requests(value: object, inventory: Sequence[GpuFacts] | None, request_: GpuRequest) -> None:
    assert request_gpus(parse_selection(value), inventory, memory_bytes=None) == request_


@table(
    ("value", "result"),
    [
        ("all", GpuRequest(3)), (3, GpuRequest(3)), ("0,1", GpuRequest(2, tuple(UUIDS[:2]))),
        (4, ("4 GPUs", "has 3 without GPU 3", "gpus.yaml", "--gpus 3")), ("3,", ("GPU 3", "gpus.yaml", "--gpus 0,1,2")),
    ],
)  # fmt: skip
def test_gpus_that_the_home_leaves_to_others(value: object, result: GpuRequest | tuple[str, ...]) -> None:
    selection = parse_selection(value)
    excluded = {UUIDS[3]}
    if isinstance(result, GpuRequest):
        assert request_gpus(selection, FOUR, memory_bytes=None, excluded=excluded) == result
        return
    with pytest.raises(SelectionError) as caught:
        request_gpus(selection, FOUR, memory_bytes=None, excluded=excluded)
    assert mentions(str(caught.value), *result)
    assert caught.value.is_refusal


def test_a_home_that_uses_no_gpu_of_the_machine_does_not_fall_back_to_the_cpu() -> None:
    with pytest.raises(SelectionError, match=r"gpus\.yaml"):
        request_gpus(parse_selection("all"), FOUR, memory_bytes=None, excluded=set(UUIDS))


@table(
    ("value", "inventory", "phrases"),
    [
        ("4", WITH_MIG, ("4 GPUs", "has 3", "GPU 3", "MIG", "--gpus 3")),
        ("5", FOUR, ("5 GPUs", "has 4", "--gpus 4")), ("4,1", FOUR, ("GPU 4", "0, 1, 2, 3")),
        (UUIDS[1][:-1] + "e", FOUR, (UUIDS[1][:-1] + "e", f"{UUIDS[1]}?")), ("1", [], ("no NVIDIA GPU", "--gpus 0")),
        ("all", WITH_MIG, ("GPU 3", "MIG", "--gpus 0,1,2")), ("3,", WITH_MIG, ("GPU 3", "MIG", "--gpus 0,1,2")),
        ("0,1", None, ("list is missing", "gputui doctor")), ("all", None, ("list is missing", "gputui doctor")),
    ],
)  # fmt: skip
def test_what_this_machine_cannot_serve(
    value: str, inventory: Sequence[GpuFacts] | None, phrases: tuple[str, ...]
) -> None:
    with pytest.raises(SelectionError) as caught:
        request_gpus(parse_selection(value), inventory, memory_bytes=None)
    assert mentions(str(caught.value), *phrases)
    assert caught.value.is_refusal
