"""What an XID says about the program and about the GPU, by number.

Classes follow the catalogue in NVIDIA's "XID Errors" guide (docs.nvidia.com/deploy/xid-errors), columns "XID" and
"Immediate Action": which of them restart the application, and which reset the GPU or reboot the machine.
"""

from __future__ import annotations

from enum import Enum


class XidClass(Enum):
    """What has to happen before the GPU can be worked on again, and whose fault it mostly was."""

    APPLICATION = "application"  # a kernel of the program did something illegal; the GPU is fine
    CONSEQUENCE = "consequence"  # written after another error, or when a program was killed
    CONTAINED = "contained"  # a memory error that hit one program; the GPU may be used again
    MEMORY = "memory"  # a memory error after which the GPU needs a reset
    LINK = "link"  # NVLink
    LOST = "lost"  # off the bus, or it answers nothing before a reset or a reboot
    NOTICE = "notice"  # nothing has to be done, or what it means is not known


_MEMBERS: dict[XidClass, tuple[int, ...]] = {
    XidClass.APPLICATION: (13, 31, 68, 69, 137),
    XidClass.CONSEQUENCE: (43, 45),
    XidClass.CONTAINED: (94,),
    XidClass.MEMORY: (48, 64, 95, 140),
    XidClass.LINK: (74, 121, 136, 144, 145, 149),
    XidClass.LOST: (46, 62, 79, 109, 110, 119, 120, 143, 154),
}

XID_CLASSES: dict[int, XidClass] = {code: name for name, codes in _MEMBERS.items() for code in codes}
"""Every XID with a class of its own; any other is a notice."""


def xid_class(code: int | None) -> XidClass:
    """The class of an XID; one that is not known is a notice, for nothing may be concluded from it."""
    return XID_CLASSES.get(code, XidClass.NOTICE) if code is not None else XidClass.NOTICE
