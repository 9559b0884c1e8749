"""XIDs, the numbers by which the driver reports errors: their meaning, and what they say about
program and GPU.

Meanings follow NVIDIA's "XID Errors" guide (docs.nvidia.com/deploy/xid-errors). Classes follow the
"Xid Catalog" of that guide for Ampere and newer GPUs, column "Resolution Bucket (Immediate Action)"
(analyzing-xid-catalog.html, as of November 2026): RESTART_APP is the application's, RESET_GPU and
RESTART_BM are the GPU's, IGNORE is a notice. Where that column names a workflow (45, 48, 74, 144 to
150), and for 137, which it leaves open, the description decides. 154 only repeats the action of the
XID before it. 32 is a notice, because it restarts the application but blames the PCIe link, and so
are errors of the video and image engines, which training seldom uses.
"""

from __future__ import annotations

from enum import Enum

# After these the GPU is off the bus, or its firmware is silent and each further call may block for
# 45 s.
FALLEN_OFF_THE_BUS = 79
FIRMWARE_SILENT = frozenset({119, 120})

_TEXTS = {
    8: "a channel of the GPU stopped (watchdog)",
    11: "corrupted commands to the GPU, mostly an error of the program",
    13: "graphics engine exception, mostly an error of the program (illegal instruction or address)",
    25: "illegal commands to the GPU, mostly an error of the program",
    31: "memory page fault, mostly an error of the program (illegal address)",
    32: "corrupted push buffer, a driver, bus or memory error",
    38: "driver firmware error",
    39: "copy engine 0 met an error",
    40: "copy engine 1 met an error",
    41: "copy engine 2 met an error",
    43: "the GPU stopped processing, mostly an error of the program",
    45: "preemptive cleanup after an earlier error or a killed program",
    46: "the GPU stopped processing and needs a reset",
    48: "double bit ECC error, the GPU needs a reset",
    54: "auxiliary power is not connected",
    56: "display engine error",
    57: "error in programming the video memory interface",
    58: "unstable video memory interface",
    61: "internal microcontroller breakpoint",
    62: "internal microcontroller halt, the GPU needs a reset",
    63: "a memory row was remapped or a page retired",
    64: "remapping a memory row or retiring a page failed",
    68: "video decoder exception",
    69: "graphics engine class error",
    70: "copy engine 3 met an error",
    71: "copy engine 4 met an error",
    72: "copy engine 5 met an error",
    74: "NVLink error",
    79: "the GPU has fallen off the bus (power, cooling or PCIe); a reboot is needed",
    80: "corrupted data sent to the GPU",
    92: "high rate of single bit ECC errors",
    94: "contained ECC error: only the program that was hit must restart",
    95: "uncontained ECC error, the GPU needs a reset",
    109: "context switch timed out, the GPU needs a reset",
    110: "security fault, the GPU needs a reset",
    119: "the GPU's firmware (GSP) does not answer; a reset or reboot is needed",
    120: "error in the GPU's firmware (GSP); a reset or reboot is needed",
    121: "corrected error of the chip-to-chip link",
    123: "writing the board's flash memory failed",
    136: "NVLink training error",
    137: "illegal access to another GPU's memory over NVLink, mostly an error of the program",
    140: "unrecovered ECC error, the GPU needs a reset",
    143: "GPU initialisation failed, the GPU needs a reset",
    144: "NVLink error (SAW)",
    145: "NVLink error (RLW)",
    146: "NVLink error (TLW)",
    147: "NVLink error (TREX)",
    148: "NVLink error (NVLPW_CTRL)",
    149: "NVLink error (NETIR)",
    150: "NVLink error (MSE)",
    154: "the driver says which recovery the GPU needs; see the kernel log",
    155: "NVLink is down, as software asked for",
    156: "a part of the GPU was retired, the GPU needs a reset",
    158: "fatal timeout, the GPU needs a reset",
    171: "uncorrectable error in the GPU's memory",
    172: "uncorrectable error in the GPU's caches",
}


def xid_text(code: int) -> str:
    """An XID and its meaning in one line."""
    return f"XID {code}: {_TEXTS.get(code, 'see the kernel log (dmesg) for what the driver says')}"


class XidClass(Enum):
    """The usual cause of an XID, and what must happen before the GPU can be used again."""

    APPLICATION = "application"
    """An illegal operation of the program; the GPU is fine."""
    CONSEQUENCE = "consequence"
    """Reported after another error, or when a program was killed."""
    CONTAINED = "contained"
    """A memory error that hit one program; the GPU can be used again."""
    MEMORY = "memory"
    """A memory error after which the GPU needs a reset."""
    LINK = "link"
    """An NVLink error."""
    LOST = "lost"
    """The GPU is off the bus, or needs a reset or a reboot."""
    NOTICE = "notice"
    """Requires no action, or has no known meaning."""


_MEMBERS: dict[XidClass, tuple[int, ...]] = {
    XidClass.APPLICATION: (8, 11, 13, 25, 31, 39, 40, 41, 68, 69, 70, 71, 72, 80, 137),
    XidClass.CONSEQUENCE: (43, 45, 154),
    XidClass.CONTAINED: (94,),
    XidClass.MEMORY: (48, 64, 95, 140, 171, 172),
    XidClass.LINK: (74, 136, *range(144, 151), 155),
    XidClass.LOST: (46, 62, 79, 109, 110, 119, 120, 143, 156, 158),
}

XID_CLASSES: dict[int, XidClass] = {code: name for name, codes in _MEMBERS.items() for code in codes}
"""Every XID with a class; any other is a notice."""


def xid_class(code: int | None) -> XidClass:
    """The class of an XID; an unknown one is a notice."""
    if code is not None:
        return XID_CLASSES.get(code, XidClass.NOTICE)
    return XidClass.NOTICE
