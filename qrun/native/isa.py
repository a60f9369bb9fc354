"""Instruction sets: what the generated kernels may use, and which of them this CPU can run."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace

from qrun.native._features import host_features, permitted
from qrun.native.errors import Declined


@dataclass(frozen=True, slots=True)
class Isa:
    """One target of the kernel generator.

    name:     as users write it.
    lanes:    int32 values per vector.
    dot:      the leaf that adds four 8-bit products to an int32 lane: vnni512, vnni256, madd512, madd256, generic,
              usdot, sdot or smull.
    rows:     rows of a register block, by its number of vectors; its largest key is the widest panel.
    fma:      float32 multiply-add with one rounding in hardware.
    cpu, features: given to LLVM, so that the code depends on the instruction set and not on the machine.
    needs:    LLVM's names of the features the CPU must have.
    architecture: LLVM's name of it.
    """

    name: str
    lanes: int
    dot: str
    rows: Mapping[int, int]
    fma: bool
    cpu: str
    features: str
    needs: frozenset[str]
    architecture: str = "x86_64"

    @property
    def vectors(self) -> int:
        return max(self.rows)

    @property
    def tiles(self) -> bool:
        """Whether products may run on AMX tiles; the other kernels are those of avx512vnni."""
        return "amx-int8" in self.needs

    def shift(self, signed: bool) -> int:
        """What dense kernels add to activations, int8 if `signed`, to get the type that their dot product takes."""
        return 128 * (signed - (self.dot in ("sdot", "smull")))


_V3 = frozenset({"avx", "avx2", "fma", "bmi", "bmi2", "f16c", "lzcnt", "movbe", "popcnt", "cx16"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_TILES = frozenset({"amx-tile", "amx-int8"})
_DOT = frozenset({"lse", "dotprod"})
_DOT_ROWS = {4: 5, 3: 6, 2: 8, 1: 10}
_NEON_ROWS = {4: 3, 3: 4, 2: 6, 1: 8}
_NO_EXTRAS = "-aes,-crc,-perfmon,-sha2"
_ARM = "aarch64"

_VNNI = Isa(
    "avx512vnni", 16, "vnni512", {4: 5, 3: 7, 2: 9, 1: 12}, True, "x86-64-v4", "+avx512vnni", _V4 | {"avx512vnni"}
)

ISAS = (
    replace(_VNNI, name="amx", features="+avx512vnni,+amx-tile,+amx-int8", needs=_VNNI.needs | _TILES),
    _VNNI,
    Isa("avxvnni", 8, "vnni256", {2: 6, 1: 8}, True, "x86-64-v3", "+avxvnni", _V3 | {"avxvnni"}),
    Isa("avx512bw", 16, "madd512", {4: 4, 3: 5, 2: 7, 1: 7}, True, "x86-64-v4", "", _V4),
    Isa("avx2", 8, "madd256", {2: 4, 1: 6}, True, "x86-64-v3", "", _V3),
    Isa("generic", 4, "generic", {2: 3, 1: 4}, False, "x86-64", "", frozenset()),
    Isa("neon-i8mm", 4, "usdot", _DOT_ROWS, True, "generic", "+lse,+dotprod,+i8mm", _DOT | {"i8mm"}, _ARM),
    Isa("neon-dotprod", 4, "sdot", _DOT_ROWS, True, "generic", "+lse,+dotprod", _DOT, _ARM),
    Isa("neon", 4, "smull", _NEON_ROWS, True, "cortex-a72", _NO_EXTRAS, frozenset(), _ARM),
)
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def host_architecture() -> str:
    """LLVM's name of this machine's architecture, or '' if there are no kernels for it."""
    return _ARCHITECTURES.get(platform.machine().lower(), "")


def available() -> tuple[Isa, ...]:
    """The instruction sets this CPU and operating system can run, best first."""
    mine = [isa for isa in ISAS if isa.architecture == host_architecture()]
    host = host_features(host_architecture()) if mine else frozenset()
    return tuple(isa for isa in mine if isa.needs <= host and (not isa.tiles or permitted()))


def choose(name: str = "") -> Isa:
    """The best instruction set, or the one called `name`. Raises Declined if this CPU cannot run it."""
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
