"""Numbers of the driver in words."""

from __future__ import annotations

from gputui.machine.nvml_calls import problem_of
from gputui.machine.throttle import throttle_words
from gputui.machine.xid import xid_text
from tests.tables import table


@table(
    ("bitmap", "reasons"),
    [
        (0x0, ()),
        (0x1, ()),  # idle
        (0x2 | 0x100, ()),  # clocks set by somebody
        (0x4, ("power cap",)),
        (0x1 | 0x8 | 0x40, ("hardware slowdown", "hardware thermal")),
        (0x20, ("software thermal",)),
        (0x8000, ("reason 0x8000",)),
    ],
)
def test_throttle_reasons(bitmap: int, reasons: tuple[str, ...]) -> None:
    assert throttle_words(bitmap) == reasons


def test_xids_say_what_happened_and_unknown_ones_where_to_look() -> None:
    assert "fallen off the bus" in xid_text(79)
    assert xid_text(79).startswith("XID 79: ")
    assert "dmesg" in xid_text(9999)


@table("code, what, remedy", [
    (12, "libnvidia-ml.so.1 is missing", "gputui --demo"), (9, "not loaded", "modprobe nvidia"),
    (18, "differ in version", "Reboot"), (4, "refuses this user", "/dev/nvidia*"), (13, "too old", "Install"),
    (999, "Unknown Error", "dmesg"),
])  # fmt: skip
def test_problems_name_a_remedy_in_one_line(code: int, what: str, remedy: str) -> None:
    text = problem_of(code, "Unknown Error")
    assert what in text
    assert remedy in text
    assert "\n" not in text
