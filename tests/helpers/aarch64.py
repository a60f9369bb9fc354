"""AArch64 kernels on any machine: plans made for it, their objects linked into one program, run under qemu-user.

Every array of a program ends at an unmapped page: touching anything beyond it ends the program.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qrun.native.emit.isa import ISAS, Isa
from qrun.native.emit.spec import KernelSpec
from qrun.native.machine.call import CompiledKernel, KernelCall
from qrun.native.machine.codegen import compile_object
from qrun.native.machine.compile import Kernels, emit_code, kernel_text
from qrun.native.machine.engine import Engine
from qrun.native.machine.threads import Awaited

Array = np.ndarray[Any, Any]

QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64") or ""
BY_NAME = {isa.name: isa for isa in ISAS}
AARCH64 = [isa.name for isa in ISAS if isa.architecture == "aarch64"]
CPUS = {"neon": "cortex-a72"}
"""What qemu imitates: a processor without dot products for the oldest set, else all that it knows."""
every_aarch64 = pytest.mark.parametrize("isa", AARCH64)
needs_qemu = pytest.mark.skipif(
    not QEMU, reason="qemu-aarch64-static is not installed (Debian: apt-get install qemu-user-static)"
)

_PAGE, _BASE, _FILL = 4096, 0x10000000, 0xA5
_MOVE_WIDE = {264: 0, 266: 16, 268: 32, 269: 48}
"""Relocations, and which 16 bits of an address they put into a move instruction."""
_START = [
    0x58000253,  # ldr x19, =table of (function, three arguments)
    0xA9400269,  # next: ldp x9, x0, [x19]
    0xA9410A61,  # ldp x1, x2, [x19, 16]
    0x91008273,  # add x19, x19, 32
    0xB4000149,  # cbz x9, exit
    0xD63F0120,  # blr x9
    0x17FFFFFB,  # b next
    0xAA0103E2,  # write(address, size): mov x2, x1
    0xAA0003E1,  # mov x1, x0
    0xD2800020,  # mov x0, 1
    0xD2800808,  # mov x8, 64
    0xD4000001,  # svc 0
    0xD65F03C0,  # ret
    0xD503201F,  # nop
    0xD2800000,  # exit: mov x0, 0
    0xD2800BA8,  # mov x8, 93
    0xD4000001,  # svc 0
    0xD503201F,  # nop; the address of the table follows
]
_WRITE = 28


class Unlinked(Kernels):
    """Kernels of a machine that is not this one: plans can be made with them, but not run."""

    def get(self, spec: KernelSpec) -> CompiledKernel:
        return CompiledKernel(Awaited(), _names(spec))


@cache
def _names(spec: KernelSpec) -> tuple[str, ...]:
    return emit_code(spec)[1]


class Foreign(Engine):
    """Plans operations for an AArch64 instruction set and runs them later:
    what `run` returns is there after `finish`."""

    def __init__(self, name: str) -> None:
        super().__init__(BY_NAME[name], Unlinked())
        self.program = Program(self.isa)

    def execute(self, sections: Sequence[KernelCall], operands: Sequence[Array]) -> None:
        self.program.add(sections, operands)

    def finish(self, folder: Path) -> None:
        self.program.run(folder, CPUS.get(self.isa.name, "max"))


class Object:
    """A relocatable ELF object. undefined: the symbols that it expects from elsewhere."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        (self.machine,) = struct.unpack_from("<H", body, 18)
        (headers,) = struct.unpack_from("<Q", body, 40)
        size, count = struct.unpack_from("<HH", body, 58)
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", body, headers + i * size) for i in range(count)]
        table = next(section for section in self.sections if section[1] == 2)
        self.symbols = list(self._entries(table, "<IBBHQQ"))
        names = self.sections[table[6]][4]
        texts = [body[names + s[0] : body.index(0, names + s[0])].decode() for s in self.symbols]
        self.undefined = [name for name, s in zip(texts, self.symbols, strict=True) if name and not s[3]]
        self.entry = self.symbols[texts.index("kernel")]

    def _entries(self, section: tuple[int, ...], layout: str) -> Any:
        return struct.iter_unpack(layout, self.body[section[4] : section[4] + section[5]])

    def linked(self, address: int) -> tuple[bytes, int]:
        """Code and constants as they are at `address`, and where the kernel then begins."""
        code, places = bytearray(), {}
        for number, (_, kind, flags, _, offset, size, _, _, align, _) in enumerate(self.sections):
            if kind == 1 and flags & 2:
                code += bytes(-len(code) % align)
                places[number] = address + len(code)
                code += self.body[offset : offset + size]
        for section in self.sections:
            if section[1] != 4 or not self.sections[section[7]][2] & 4:
                continue
            for offset, info, addend in self._entries(section, "<QQq"):
                symbol, place = self.symbols[info >> 32], places[section[7]] - address + offset
                part = (places[symbol[3]] + symbol[4] + addend) >> _MOVE_WIDE[info & 0xFFFFFFFF] & 0xFFFF
                (word,) = struct.unpack_from("<I", code, place)
                struct.pack_into("<I", code, place, word | part << 5)
        return bytes(code), places[self.entry[3]] + self.entry[4]


class Program:
    """Kernel calls on arrays of their own, the last array of each call being its result."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.segments: list[tuple[int, Array]] = []
        self.next = _BASE
        self.kernels: dict[KernelSpec, int] = {}
        self.calls: list[int] = []
        self.results: list[tuple[int, Array]] = []

    def add(self, sections: Sequence[KernelCall], operands: Sequence[Array]) -> None:
        *sources, result = (np.ascontiguousarray(operand).reshape(-1).view(np.uint8) for operand in operands)
        reach = [max(extents) for extents in zip(*(section.extents for section in sections), strict=True)]
        assert all(n <= array.nbytes for n, array in zip(reach, operands, strict=True)), "a buffer is too small"
        addresses = [self._place(array[:n], 1) for array, n in zip(sources, reach, strict=False)]
        addresses.append(self._place(result, 1, _FILL))
        self.results.append((self.segments[-1][0], operands[-1]))
        for section in sections:
            arguments = section.bind(addresses)
            for array in section.keep:
                arguments[arguments == array.__array_interface__["data"][0]] = self._place(array)
            if section.spec not in self.kernels:
                self.kernels[section.spec] = self._code(section.spec)
            at = self._place(arguments)
            scratch = self._place(np.zeros(section.scratch, np.uint8)) if section.scratch else 0
            self.calls += [self.kernels[section.spec], at, at + 256, scratch]

    def run(self, folder: Path, cpu: str) -> None:
        """Fill in the results."""
        start = self._place(np.zeros(len(_START) + 2, np.uint32))
        code = self.segments[-1][1][start % _PAGE :].view(np.uint32)
        for first, array in self.results:
            self.calls += [start + _WRITE, first, _pages(array.nbytes), 0]
        code[: len(_START)] = _START
        code[len(_START) : len(_START) + 2] = self._place(np.array([*self.calls, 0, 0, 0, 0])), 0
        file = folder / "program"
        file.write_bytes(self._elf(start))
        file.chmod(0o755)
        command = [QEMU, "-cpu", cpu, str(file)]
        done = subprocess.run(command, capture_output=True, timeout=300, check=False, cwd=folder)
        assert done.returncode == 0, (done.returncode, done.stderr.decode())
        output = done.stdout
        for _, array in self.results:
            end = _pages(array.nbytes)
            before, body, output = output[: end - array.nbytes], output[end - array.nbytes : end], output[end:]
            assert not before.strip(bytes([_FILL])), "written before the start of a result"
            array[...] = np.frombuffer(body, array.dtype).reshape(array.shape)
        assert not output

    def _code(self, spec: KernelSpec) -> int:
        found = Object(compile_object(kernel_text(spec), self.isa))
        assert not found.undefined, (spec, found.undefined)
        size = len(found.linked(0)[0])
        address = self._place(np.zeros(size, np.uint8))
        code, entry = found.linked(address)
        self.segments[-1][1][address % _PAGE :][:size] = np.frombuffer(code, np.uint8)
        return entry

    def _place(self, array: Array, align: int = 64, fill: int = 0) -> int:
        """Put a copy at the end of pages of its own, with an unmapped page behind it."""
        size = -(-array.nbytes // align) * align
        pages = np.full(_pages(size), fill, np.uint8)
        first = len(pages) - size
        pages[first : first + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.segments.append((self.next, pages))
        self.next += len(pages) + _PAGE
        return self.segments[-1][0] + first

    def _elf(self, entry: int) -> bytes:
        """A static executable; the place of everything in the file is its address less _BASE, one page on."""
        body = bytearray(_PAGE + self.next - _BASE)
        headers = bytearray()
        for address, pages in self.segments:
            offset, size = address - _BASE + _PAGE, len(pages)
            body[offset : offset + size] = pages.tobytes()
            headers += struct.pack("<IIQQQQQQ", 1, 7, offset, address, address, size, size, _PAGE)
        counts = (64, 56, len(self.segments), 64, 0, 0)
        body[:64] = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack(
            "<HHIQQQIHHHHHH", 2, 183, 1, entry, len(body), 0, 0, *counts
        )
        return bytes(body + headers)


def _pages(size: int) -> int:
    return max(1, -(-size // _PAGE)) * _PAGE
