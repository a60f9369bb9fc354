"""The instruction sets that kernels are generated for, and the choice of one that this CPU can run."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

from qrun.declare.frozen import frozen
from qrun.native.errors import Declined

_HWCAP, _HWCAP2 = 16, 26
_LINUX = {"lse": (_HWCAP, 8), "dotprod": (_HWCAP, 20), "i8mm": (_HWCAP2, 13)}
"""For each feature of AArch64: the entry of Linux's auxiliary vector, and the bit in it."""
_PERMISSION = (158, 0x1023, 18)
"""arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of x86-64."""
_CPUINFO = {"abm": "lzcnt", "bmi1": "bmi", "sse4_1": "sse4.1", "sse4_2": "sse4.2"}
"""LLVM's names of features, by Linux's names where these differ."""
_DARWIN = {"lse": "FEAT_LSE", "dotprod": "FEAT_DotProd", "i8mm": "FEAT_I8MM"}


def host_features(architecture: str) -> frozenset[str]:
    """The CPU features of this machine, by LLVM's names. Raises ImportError without llvmlite.

    On x86 /proc/cpuinfo is read, which is faster, or else LLVM is asked. On AArch64 the operating system is asked,
    since LLVM does not look for dotprod and i8mm.
    """
    if find_spec("llvmlite") is None:
        raise ImportError("No module named 'llvmlite'")
    if architecture != "aarch64":
        return _of_cpuinfo() or _of_llvm()
    if sys.platform not in ("linux", "darwin"):
        return frozenset()
    found = (name for name in _LINUX if (_on_darwin(name) if sys.platform == "darwin" else _on_linux(name)))
    return frozenset(found)


def _of_llvm() -> frozenset[str]:
    """The CPU's features as LLVM reports them."""
    import llvmlite.binding as llvm

    return frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)


@cache
def _of_cpuinfo() -> frozenset[str]:
    """The x86 features that Linux lets programs use, by LLVM's names; empty if /proc/cpuinfo does not list them."""
    try:
        with open("/proc/cpuinfo", "rb") as lines:
            line = next(line for line in lines if line.startswith(b"flags")).decode()
    except (OSError, StopIteration, ValueError):
        return frozenset()
    names = (_CPUINFO.get(name, name) for name in line.partition(":")[2].split())
    return frozenset(n.replace("_", "-") if n.startswith("amx") else n.replace("_", "") for n in names)


def _on_linux(feature: str) -> bool:
    """Whether Linux reports a feature of an Arm CPU."""
    entry, bit = _LINUX[feature]
    vector = ctypes.CDLL(None).getauxval
    vector.argtypes, vector.restype = [ctypes.c_ulong], ctypes.c_ulong
    return bool(vector(entry) >> bit & 1)


def _on_darwin(feature: str) -> bool:
    """Whether macOS reports a feature of an Arm CPU."""
    value, size = ctypes.c_int(0), ctypes.c_size_t(4)
    name = f"hw.optional.arm.{_DARWIN[feature]}".encode()
    status = ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return status == 0 and value.value != 0


@cache
def permit_tiles() -> bool:
    """Ask Linux for permission to use AMX tiles, once per process. Returns whether it was granted; without it, tile
    instructions are illegal. Threads and forked processes inherit the permission.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 2**32:
        return False
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    return bool(call(*map(ctypes.c_long, _PERMISSION)) == 0)


PAUSE: Mapping[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "x86_64": ("llvm.x86.sse2.pause", ()),
    "aarch64": ("llvm.aarch64.hint", (("i32", "1"),)),
}
"""The hint that this thread waits for another one (PAUSE, YIELD): an intrinsic and its operands, by architecture."""
CLOCK = {"x86_64": "llvm.readcyclecounter", "aarch64": "llvm.readsteadycounter"}
"""The intrinsic that reads the processor's clock."""


@frozen
class Isa:
    """An instruction set: one target of the kernel generator.

    name:     as users write it.
    lanes:    int32 values per vector.
    dot:      the operation that adds four 8-bit products to an int32 lane (emit/dot.py): vnni512, vnni256, madd512,
              madd256, generic, usdot, sdot or smull.
    rows:     rows of a register block, by its number of vectors; its largest key is the widest panel.
    real_rows: the same for float32 sums.
    fma:      whether the hardware has a float32 multiply-add with one rounding.
    cpu, features: given to LLVM, so that the code depends on the instruction set and not on the machine.
    needs:    the features that the CPU must have, by LLVM's names.
    architecture: LLVM's name of the architecture.
    """

    name: str
    lanes: int
    dot: str
    rows: Mapping[int, int]
    real_rows: Mapping[int, int]
    fma: bool
    cpu: str
    features: str
    needs: frozenset[str]
    architecture: str = "x86_64"

    @property
    def vectors(self) -> int:
        """The largest number of result vectors per row that a product kernel may use."""
        return max(self.rows)

    @property
    def permutes(self) -> bool:
        """Whether one instruction looks up, in each lane, one of sixteen float64."""
        return self.lanes == 16

    @property
    def tiles(self) -> bool:
        """Whether products may run on AMX tiles. All other kernels are the same as for avx512vnni."""
        return "amx-int8" in self.needs

    @property
    def clips(self) -> bool:
        """Whether products of bytes saturate at 16 bits, so that activations are clipped (emit/copied.py)."""
        return self.dot == "madd256"

    @property
    def dots(self) -> bool:
        """Whether one instruction adds the products of four bytes exactly if the left ones are below 128."""
        return self.dot in ("vnni512", "vnni256", "usdot", "sdot")

    @property
    def dots_of_nibbles(self) -> bool:
        """Whether sums of byte products are exact if the left bytes are below 16: where they saturate at 16 bits, sums
        of 16 such products fit."""
        return self.dots or self.dot in ("madd256", "madd512")

    @property
    def widens(self) -> bool:
        """Whether exact products take 16-bit operands, so that it pays to widen activations once, in a copy."""
        return self.dot in ("madd256", "madd512", "generic")

    def shift(self, signed: bool) -> int:
        """The number that dense kernels add to activations to get the type that their dot product takes: 128, 0 or
        -128. signed: activations are int8."""
        return 128 * (signed - (self.dot in ("sdot", "smull")))


_V3 = frozenset({"avx", "avx2", "fma", "bmi", "bmi2", "f16c", "lzcnt", "movbe", "popcnt", "cx16"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_TILES = frozenset({"amx-tile", "amx-int8"})
_DOT = frozenset({"lse", "dotprod"})
_DOT_ROWS = {4: 5, 3: 6, 2: 8, 1: 10}
_NEON_ROWS = {4: 3, 3: 4, 2: 6, 1: 8}
_REAL_ROWS = {4: 6, 3: 8, 2: 12, 1: 14}
_AVX2_REAL_ROWS = {2: 6, 1: 8}
_NEON_REAL_ROWS = {4: 5, 3: 6, 2: 10, 1: 12}
_NO_EXTRAS = "-aes,-crc,-perfmon,-sha2"
_ARM = "aarch64"

_VNNI_ROWS = {4: 5, 3: 7, 2: 9, 1: 12}
_VNNI_CPU = _V4 | {"avx512vnni"}

_VNNI = Isa("avx512vnni", 16, "vnni512", _VNNI_ROWS, _REAL_ROWS, True, "x86-64-v4", "+avx512vnni", _VNNI_CPU)

ISAS = (
    replace(_VNNI, name="amx", features="+avx512vnni,+amx-tile,+amx-int8", needs=_VNNI.needs | _TILES),
    _VNNI,
    Isa("avxvnni", 8, "vnni256", {2: 6, 1: 8}, _AVX2_REAL_ROWS, True, "x86-64-v3", "+avxvnni", _V3 | {"avxvnni"}),
    Isa("avx512bw", 16, "madd512", {4: 4, 3: 5, 2: 7, 1: 7}, _REAL_ROWS, True, "x86-64-v4", "", _V4),
    Isa("avx2", 8, "madd256", {2: 4, 1: 6}, _AVX2_REAL_ROWS, True, "x86-64-v3", "", _V3),
    Isa("generic", 4, "generic", {2: 3, 1: 4}, {2: 4, 1: 6}, False, "x86-64", "", frozenset()),
    Isa(
        "neon-i8mm",
        4,
        "usdot",
        _DOT_ROWS,
        _NEON_REAL_ROWS,
        True,
        "generic",
        "+lse,+dotprod,+i8mm",
        _DOT | {"i8mm"},
        _ARM,
    ),
    Isa("neon-dotprod", 4, "sdot", _DOT_ROWS, _NEON_REAL_ROWS, True, "generic", "+lse,+dotprod", _DOT, _ARM),
    Isa("neon", 4, "smull", _NEON_ROWS, _NEON_REAL_ROWS, True, "cortex-a72", _NO_EXTRAS, frozenset(), _ARM),
)
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def host_architecture() -> str:
    """LLVM's name of this machine's architecture; '' if qrun has no kernels for it."""
    return _ARCHITECTURES.get(platform.machine().lower(), "")


def available() -> tuple[Isa, ...]:
    """The instruction sets that this CPU and operating system can run, best first."""
    mine = [isa for isa in ISAS if isa.architecture == host_architecture()]
    host = host_features(host_architecture()) if mine else frozenset()
    return tuple(isa for isa in mine if isa.needs <= host and (not isa.tiles or permit_tiles()))


def choose(name: str = "") -> Isa:
    """The instruction set called `name`; without a name, the one in QRUN_ISA, or else the best.
    Raises Declined if this CPU cannot run it."""
    name = name or os.environ.get("QRUN_ISA", "")
    usable = available()
    if not usable:
        raise Declined(f"no native kernels for {platform.machine()}")
    if not name:
        return usable[0]
    for isa in usable:
        if isa.name == name:
            return isa
    known = ", ".join(isa.name for isa in usable)
    what = "cannot run on this CPU" if any(isa.name == name for isa in ISAS) else "is not an instruction set"
    raise Declined(f"{name!r} {what}; usable here: {known}")
