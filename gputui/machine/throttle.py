"""The reasons why a GPU is throttled."""

from __future__ import annotations

# Bits of nvmlDeviceGetCurrentClocksEventReasons ("throttle reasons" before driver 535), from
# nvml.h.
_WORDS = {
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal",
    0x040: "hardware thermal",
    0x080: "power brake",
    0x200: "board limit",
    0x400: "reliability",
}

HARMFUL = frozenset({"hardware slowdown", "software thermal", "hardware thermal", "power brake", "reliability"})
"""Reasons that mean heat, a fault or failing power. Any busy GPU reaches a power cap, the board's
limit or synchronised boost."""

# Idle, application clocks and display clocks need no action, so they are not listed.
_BENIGN = 0x001 | 0x002 | 0x100


def throttle_words(bitmap: int) -> tuple[str, ...]:
    """The reasons in ``bitmap``; an unknown bit is named by its number."""
    bits = bitmap & ~_BENIGN
    names = []
    for bit, word in _WORDS.items():
        if bits & bit:
            names.append(word)
            bits &= ~bit
    while bits:
        bit = bits & -bits
        names.append(f"reason 0x{bit:x}")
        bits &= ~bit
    return tuple(names)
