"""Validation of ZIP archives, the format of ``torch.save``.

Python's zipfile checks the CRC of every member, but is more lenient than PyTorch's reader about the rest: here the
directory must describe the file without gaps, and each member's local header must agree with it. Layout after PKWARE's
APPNOTE.TXT, sections 4.3.7 to 4.3.16.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import IO

MAGIC = b"PK\x03\x04"
PIECE_BYTES = 1 << 20
# A directory has about a hundred bytes per tensor.
MAX_DIRECTORY_BYTES = 256 << 20

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR64 = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")
_DESCRIPTOR_FLAG = 0x08  # the CRC and sizes follow the data
_FOLDER_ATTRIBUTE = 0x10  # MS-DOS: PyTorch's reader then gives no content and no error
_FULL32, _FULL16 = 0xFFFFFFFF, 0xFFFF  # "see the 64 bit field"


class DamagedArchiveError(Exception):
    """The archive is damaged or incomplete; the message says where."""


def check(file: IO[bytes]) -> int:
    """Read the whole archive; return its number of members. Raises DamagedArchiveError or OSError."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if not members:
                raise DamagedArchiveError("it is an archive without content")
            _check_directory(file, archive.start_dir, members)
            for member in members:
                length = 0
                with archive.open(member) as content:
                    while piece := content.read(PIECE_BYTES):
                        length += len(piece)
                stored = member.compress_type == zipfile.ZIP_STORED
                if length != member.file_size or (stored and length != member.compress_size):
                    raise DamagedArchiveError(f"the size of {member.filename} is wrong")
                _check_local(file, member)
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error) as error:
        raise DamagedArchiveError(str(error) or "it is cut short") from None
    except (NotImplementedError, RuntimeError, ValueError, OverflowError) as error:
        # An unknown compression, an encrypted member, offsets outside of the file.
        raise DamagedArchiveError(str(error)) from None
    return len(members)


def _check_directory(file: IO[bytes], start: int, members: list[zipfile.ZipInfo]) -> None:
    """Check that the directory reaches exactly to the end records, and that these agree with it."""
    file.seek(0, 2)
    size = file.tell()
    if not 0 <= start <= size or size - start > MAX_DIRECTORY_BYTES:
        raise DamagedArchiveError("its directory is not where it should be")
    file.seek(start)
    data = file.read()
    at = 0
    names: set[str] = set()
    for member in members:
        fields = _CENTRAL.unpack_from(data, at)
        name, extra, comment, disk, attributes = fields[10], fields[11], fields[12], fields[13], fields[15]
        wrong = fields[0] != b"PK\x01\x02" or disk not in (0, _FULL16) or comment or member.filename in names
        if wrong or attributes & _FOLDER_ATTRIBUTE or member.is_dir():
            raise DamagedArchiveError(f"the entry of {member.filename} in its directory is wrong")
        names.add(member.filename)
        at += _CENTRAL.size + name + extra + comment
    length, count = at, len(members)
    if data[at : at + 4] == b"PK\x06\x06":
        end64 = _END64.unpack_from(data, at)
        record = start + at
        expected = (_END64.size - 12, 0, 0, count, count, length, start)
        if (end64[1], *end64[4:]) != expected:
            raise DamagedArchiveError("its end record is wrong")
        at += _END64.size
        if _LOCATOR64.unpack_from(data, at) != (b"PK\x06\x07", 0, record, 1):
            raise DamagedArchiveError("its end record is wrong")
        at += _LOCATOR64.size
    magic, disk, first, here, total, reported, place, comment = _END.unpack_from(data, at)
    if (
        magic != b"PK\x05\x06"
        or (disk, first) not in ((0, 0), (_FULL16, _FULL16))
        or not {here, total} <= {count, _FULL16}
        or reported not in (length, _FULL32)
        or place not in (start, _FULL32)
        or at + _END.size + comment != len(data)
    ):
        raise DamagedArchiveError("its end record is wrong")


def _check_local(file: IO[bytes], member: zipfile.ZipInfo) -> None:
    """Check the local header, which PyTorch's reader uses too."""
    file.seek(member.header_offset)
    fields = _LOCAL.unpack(file.read(_LOCAL.size))
    flags, method, crc, packed, unpacked = fields[2], fields[3], fields[6], fields[7], fields[8]
    same = flags == member.flag_bits and method == member.compress_type
    if not flags & _DESCRIPTOR_FLAG:
        same = same and crc == member.CRC
        same = same and packed in (member.compress_size, _FULL32) and unpacked in (member.file_size, _FULL32)
    if not same:
        raise DamagedArchiveError(f"the header of {member.filename} is wrong")
