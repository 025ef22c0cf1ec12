"""GPU code that one card does not need, cut out of a shared object.

The object keeps its size and its layout: payloads of other architectures in the section .nv_fatbin
become zeros, which compress to nothing. Of each container stay the machine code of the card or,
where it has none, the newest PTX that the card can compile.
"""

import dataclasses
import struct
from collections.abc import Iterator

CONTAINER_MAGIC = 0xBA55ED50
PTX, MACHINE_CODE = 1, 2


@dataclasses.dataclass(frozen=True)
class Entry:
    kind: int
    architecture: int  # 90
    offset: int
    size: int


def sections(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Name, offset and size of each section of a 64-bit ELF file."""
    table = struct.unpack_from("<Q", data, 40)[0]
    entry_size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * entry_size) for i in range(count)]
    for name, _, _, _, offset, size in headers:
        begin = headers[names][4] + name
        yield data[begin : data.index(0, begin)], offset, size


def containers(data: bytes, begin: int, end: int) -> Iterator[list[Entry]]:
    """The entries of each container of a section."""
    at = begin
    while at + 16 <= end:
        magic, _, header, body = struct.unpack_from("<IHHQ", data, at)
        if magic != CONTAINER_MAGIC:
            at += 8
            continue
        at += header
        stop, entries = at + body, []
        while at < stop:
            kind, _, entry_header, size = struct.unpack_from("<HHIQ", data, at)
            architecture = struct.unpack_from("<I", data, at + 28)[0]
            entries.append(Entry(kind, architecture, at + entry_header, size))
            at += entry_header + size
        yield entries


def prune(data: bytes, architecture: int) -> bytes:
    kept = bytearray(data)
    for name, offset, size in sections(data):
        if name != b".nv_fatbin":
            continue
        for entries in containers(data, offset, offset + size):
            for entry in entries:
                if not _needed(entry, entries, architecture):
                    kept[entry.offset : entry.offset + entry.size] = bytes(entry.size)
    return bytes(kept)


def _needed(entry: Entry, entries: list[Entry], architecture: int) -> bool:
    if any(x.kind == MACHINE_CODE and x.architecture == architecture for x in entries):
        return entry.kind == MACHINE_CODE and entry.architecture == architecture
    usable = [x.architecture for x in entries if x.kind == PTX and x.architecture <= architecture]
    return entry.kind == PTX and bool(usable) and entry.architecture == max(usable)
