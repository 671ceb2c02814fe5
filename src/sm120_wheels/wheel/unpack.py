"""Unpacks one member of a zip archive, fast: with zlib alone, unpacking would take most of the time of an audit.

What a member may be called, and whether it can be true, is judged elsewhere (``zipsafe.py``).
"""

from __future__ import annotations

import contextlib
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

try:  # the same interface, three times as fast; there are wheels of it for x86_64 and aarch64
    from zlib_ng import zlib_ng as zlib
except ImportError:
    import zlib  # type: ignore[no-redef]

_DAMAGED: Any = zlib.error  # its stub says that it is an instance
_PACKED_CHUNK = 256 << 10
_WORTH_A_THREAD = 4 << 20
#: A member's local header; all that is read are the lengths of the name and the extra field that follow it.
_LOCAL_HEADER = struct.Struct("<26xHH")


def unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> Iterator[bytes]:
    """A member's bytes piece by piece; after the last one they have been checked against the archive's CRC.

    ``path`` is the archive's. Raises :class:`zipfile.BadZipFile` and what :meth:`zipfile.ZipFile.open` raises.
    """
    archive.open(info).close()  # for its checks of the local header
    inflater = zlib.decompressobj(-zlib.MAX_WBITS) if info.compress_type == zipfile.ZIP_DEFLATED else None
    crc, left = 0, info.compress_size
    with path.open("rb") as stream:
        stream.seek(info.header_offset)
        lengths = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
        stream.seek(sum(lengths), os.SEEK_CUR)
        while left and (packed := stream.read(min(left, _PACKED_CHUNK))):
            left -= len(packed)
            try:
                chunk = inflater.decompress(packed) if inflater else packed
            except _DAMAGED as exc:
                raise zipfile.BadZipFile(str(exc)) from exc
            crc = zlib.crc32(chunk, crc)
            yield chunk
    if crc != info.CRC:
        raise zipfile.BadZipFile(f"its CRC-32 is {crc:08x}, the archive says {info.CRC:08x}")


@contextlib.contextmanager
def beside(work: Callable[[bytes], Any], *, size: int) -> Iterator[Callable[[bytes], Any]]:
    """A function that has ``work`` done to one piece after another in a thread of its own, while the next is unpacked.

    Unpacking, hashing and writing all leave the interpreter's lock alone. What ``work`` raises is raised by the next
    call or at the end of the block. For less than some megabytes (``size`` bytes in all) it is ``work`` itself.
    """
    if size < _WORTH_A_THREAD:
        yield work
        return
    running: list[Future[Any]] = []

    def hand_over(piece: bytes) -> None:
        if running:
            running.pop().result()
        running.append(pool.submit(work, piece))

    with ThreadPoolExecutor(1) as pool:
        yield hand_over
        if running:
            running.pop().result()
