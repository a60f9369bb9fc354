"""Compiled objects as blobs: machine code and its constants in one piece that runs at any address.

Loading one needs neither LLVM nor its memory. Only for Linux on x86-64; elsewhere LLVM loads objects.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

from qrun.declare.frozen import frozen

USABLE = sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 2**32

_ELF = b"\x7fELF\x02\x01\x01"
_X86_64 = 62
_BITS, _SYMBOLS, _NAMES, _RELOCATIONS = 1, 2, 3, 4
_WRITE, _ALLOC = 1, 2
_RELATIVE = (2, 4)
_GLOBAL_FUNCTION = 0x12
"""From the ELF-64 format: machine; types and flags of sections; R_X86_64_PC32 and PLT32, which hold distances; a
symbol's info."""
_HEAD = struct.Struct("<II")
_SYMBOL = struct.Struct("<24sQ")
_ALIGN = 64
"""The alignment of a blob's start, and the most that one of its sections may require."""


@frozen
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


class _Foreign(Exception):
    """The object needs a real linker."""


def blob_of(body: bytes) -> bytes | None:
    """The blob of an ELF object for x86-64 that was compiled as position-independent code; None if the object needs
    more than distances between its own sections."""
    try:
        return _blob(body)
    except (_Foreign, struct.error, ValueError):
        return None


def _blob(body: bytes) -> bytes:
    """The code of an ELF object file as one relocated block. Raises _Foreign for what it does not know."""
    if body[:7] != _ELF or struct.unpack_from("<H", body, 18)[0] != _X86_64:
        raise _Foreign
    sections = _sections(body)
    places: dict[int, int] = {}
    code = bytearray()
    for number, section in enumerate(sections):
        if not section.flags & _ALLOC or section.name == ".eh_frame" or not section.size:
            continue
        if section.kind != _BITS or section.flags & _WRITE or section.align > _ALIGN:
            raise _Foreign
        code += b"\xcc" * (-len(code) % max(section.align, 16))
        places[number] = len(code)
        code += body[section.offset : section.offset + section.size]
    symbols = list(_symbols(body, sections))
    for section in sections:
        if section.kind == _RELOCATIONS and section.info in places:
            _relocate(code, body, section, places, symbols)
    names = [(name, places[at] + value) for name, info, at, value in symbols if info == _GLOBAL_FUNCTION]
    if any(len(name) > 24 for name, _ in names):
        raise _Foreign
    return _HEAD.pack(len(names), len(code)) + b"".join(_SYMBOL.pack(*entry) for entry in names) + bytes(code)


def _sections(body: bytes) -> list[_Section]:
    """The section headers of an ELF object file."""
    start, count, names = *struct.unpack_from("<Q", body, 40), *struct.unpack_from("<HH", body, 60)
    rows = [struct.unpack_from("<IIQQQQIIQQ", body, start + 64 * i) for i in range(count)]
    text = body[rows[names][4] :]
    return [
        _Section(_name(text, name).decode(), kind, flags, offset, size, link, info, align)
        for name, kind, flags, _, offset, size, link, info, align, _ in rows
    ]


def _name(table: bytes, start: int) -> bytes:
    """The string of a string table that starts at a byte."""
    return table[start : table.index(b"\0", start)]


def _symbols(body: bytes, sections: list[_Section]) -> Iterator[tuple[bytes, int, int, int]]:
    """The symbols: name, kind, section and place in it."""
    (table,) = (section for section in sections if section.kind == _SYMBOLS)
    names = body[sections[table.link].offset :][: sections[table.link].size]
    for name, info, _, section, value, _ in struct.iter_unpack("<IBBHQQ", body[table.offset :][: table.size]):
        yield _name(names, name), info, section, value


def _relocate(
    code: bytearray, body: bytes, table: _Section, places: dict[int, int], symbols: list[tuple[bytes, int, int, int]]
) -> None:
    """Apply a table of relocations to the code."""
    for offset, info, addend in struct.iter_unpack("<QQq", body[table.offset :][: table.size]):
        _, _, section, value = symbols[info >> 32]
        if info & 0xFFFFFFFF not in _RELATIVE or section not in places:
            raise _Foreign
        target = places[table.info] + offset
        struct.pack_into("<i", code, target, places[section] + value + addend - target)


class Blob:
    """A blob in executable memory, which nothing can write to. It must outlive every call. body: its bytes."""

    def __init__(self, body: bytes, memory: Any, start: int, offsets: Mapping[str, int]) -> None:
        self.body = body
        self._memory, self._start, self._offsets = memory, start, offsets

    def get_function_address(self, name: str) -> int:
        """The address of a function, as llvmlite's engine returns it."""
        return self._start + self._offsets[name]


def load_blobs(bodies: Sequence[bytes]) -> list[Blob]:
    """These blobs, in one piece of executable memory. Raises OSError where the system does not allow it."""
    parts = [_split_code(body) for body in bodies]
    places = list(accumulate((-(-len(code) // _ALIGN) * _ALIGN for _, code in parts), initial=0))
    memory = mmap.mmap(-1, places[-1], mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    for (_, code), start_of_code in zip(parts, places, strict=False):
        memory[start_of_code : start_of_code + len(code)] = code
    pin = ctypes.c_char.from_buffer(memory)
    start = ctypes.addressof(pin)
    _protect(start, places[-1])
    pairs = zip(bodies, parts, places, strict=False)
    return [Blob(body, (memory, pin), start + start_of_code, offsets) for body, (offsets, _), start_of_code in pairs]


def _split_code(body: bytes) -> tuple[dict[str, int], bytes]:
    """The place of each function in the code, by name, and the code. Raises OSError if this is no blob."""
    if len(body) < _HEAD.size:
        raise OSError("not a blob")
    count, size = _HEAD.unpack_from(body)
    table, code = body[_HEAD.size :][: _SYMBOL.size * count], body[_HEAD.size + _SYMBOL.size * count :]
    if len(code) != size or not size:
        raise OSError("not a blob")
    return {name.rstrip(b"\0").decode(): offset for name, offset in _SYMBOL.iter_unpack(table)}, code


def _protect(start: int, size: int) -> None:
    """Make memory executable and read-only. Raises OSError."""
    if _change_protection()(start, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "memory cannot be made executable")


@cache
def _change_protection() -> Any:
    """The C library's mprotect."""
    change: Any = ctypes.CDLL(None, use_errno=True).mprotect
    change.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return change
