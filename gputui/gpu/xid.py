"""XIDs: the numbers by which the driver reports that something went wrong, in words.

Meanings follow NVIDIA's "XID Errors" guide (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

# After these the GPU is off the bus, or its firmware does not answer and each further call may block for 45 s.
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
    """One line on an XID."""
    return f"XID {code}: {_TEXTS.get(code, 'see the kernel log (dmesg) for what the driver says')}"
