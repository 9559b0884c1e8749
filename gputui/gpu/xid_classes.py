"""What an XID says about the program and about the GPU, by number.

Classes follow the "Xid Catalog" of NVIDIA's guide for Ampere and newer GPUs, column "Resolution Bucket (Immediate
Action)" (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, compared in November 2026): RESTART_APP is the
application's, RESET_GPU and RESTART_BM are the GPU's, IGNORE is a notice. Where that column names a workflow (45, 48,
74, 144 to 150), and for 137, which it leaves to the reader, the description beside it decides; 154 only repeats which
action the XID before it asks for. 32 is left a notice, for it restarts the application but blames the PCIe link, and so
are the engines for video and images, which training seldom uses.
"""

from __future__ import annotations

from enum import Enum


class XidClass(Enum):
    """What has to happen before the GPU can be worked on again, and whose fault it mostly was."""

    APPLICATION = (
        "application"  # a kernel of the program did something illegal, or an engine that it used; the GPU is fine
    )
    CONSEQUENCE = "consequence"  # written after another error, or when a program was killed
    CONTAINED = "contained"  # a memory error that hit one program; the GPU may be used again
    MEMORY = "memory"  # a memory error after which the GPU needs a reset
    LINK = "link"  # NVLink
    LOST = "lost"  # off the bus, or it needs a reset or a reboot before it works on
    NOTICE = "notice"  # nothing has to be done, or what it means is not known


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
    """The class of an XID; one that is not known is a notice, for nothing may be concluded from it."""
    return XID_CLASSES.get(code, XidClass.NOTICE) if code is not None else XidClass.NOTICE
