"""Kernels of the x86 instruction sets that this CPU lacks, run on any CPU with AVX2.

Kernels are LLVM IR, which LLVM lowers to any CPU but for the intrinsics of x86: each that is missing here becomes a
call of a function of intrinsics_support.py. Nothing else differs:
generator, plans, threads and memory are those of the set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from helpers.intrinsics import INSTRUCTIONS, PREFIX, STATE
from qrun.native.emit.isa import ISAS, Isa, available, host_architecture, host_features, permit_tiles
from qrun.native.machine.cache import default_directory
from qrun.native.machine.compile import Emitted, Kernels
from qrun.native.machine.engine import Engine

BASE = "avx2"
_CALL = re.compile(r"@llvm\.(x86\.[\w.]+|masked\.\w+\.v64i8\.p0)\((\)?)")
_COMMON = ("x86.sse", "x86.ssse", "x86.avx.", "x86.avx2.")
_READ = re.compile(r'^ *call void asm sideeffect "", .*\n', re.M)
"""What keeps vectors in registers, which a CPU without vectors of that size has not; it does nothing else."""
_OWN_FEATURES = re.compile(r'"target-features"="[^"]*" ')


@cache
def emulated_sets() -> dict[str, Isa]:
    """The x86 instruction sets that only emulation can run here, by name, best first; none without AVX2."""
    here = {isa.name for isa in available()}
    return {i.name: i for i in ISAS if BASE in here and i.architecture == host_architecture() and i.name not in here}


@cache
def usable() -> frozenset[str]:
    """The features of this CPU that this process may use."""
    found = host_features(host_architecture())
    return found if permit_tiles() else frozenset(name for name in found if not name.startswith("amx"))


def emulating(isa: Isa) -> Isa:
    """The instruction set, compiled for what this CPU has of it."""
    base = next(i for i in ISAS if i.name == BASE)
    more = sorted(isa.needs & usable() - base.needs)
    return replace(isa, cpu=base.cpu, features=",".join(f"+{name}" for name in more))


def translated(text: str, has: frozenset[str]) -> str:
    """The IR of a kernel without the intrinsics that need more features than `has`, which includes AVX2.

    Raises NotImplementedError for an intrinsic that is not in INSTRUCTIONS.
    """
    names = {name for name, _ in _CALL.findall(text) if not name.startswith(_COMMON)}
    if unknown := names - INSTRUCTIONS.keys():
        raise NotImplementedError(f"no emulation of {', '.join(sorted(unknown))}")
    missing = {name: INSTRUCTIONS[name] for name in names if INSTRUCTIONS[name].feature not in has}

    def call(found: re.Match[str]) -> str:
        name, end = found.groups()
        if name not in missing:
            return found.group()
        return f"@{PREFIX}{name}({'ptr %tiles' + ', ' * (not end) if missing[name].tiles else ''}{end or ''}"

    text = _READ.sub("", _OWN_FEATURES.sub("", _CALL.sub(call, text)))
    if any(instruction.tiles for instruction in missing.values()):
        text = text.replace("\nentry:\n", f"\nentry:\n  %tiles = alloca [{STATE} x i8], align 64\n", 1)
    parts = [text, *(instruction.text(name) for name, instruction in missing.items())]
    lines = [line for part in parts for line in part.splitlines()]
    declared = {line for line in lines if line.startswith("declare")}
    needed = sorted(line for line in declared if PREFIX not in line)
    return "\n".join([*needed, *(line for line in lines if line not in declared), ""])


class Emulated(Kernels):
    """Kernels of an instruction set that this CPU lacks. Their code is kept under what it was compiled for."""

    def _load(self, name: str, isa: Isa, emit: Callable[[], Emitted]) -> tuple[Any, tuple[str, ...]]:
        def made() -> Emitted:
            text, names = emit()
            return translated(text, isa.needs & usable()), names

        return super()._load(f"emulated {name}", emulating(isa), made)


@contextmanager
def emulation() -> Iterator[None]:
    """Engines may be created for the sets of emulated_sets() as well, by name. They never use the user's cache."""
    create = Engine.create

    def made(isa: str = "", cache: str | os.PathLike[str] | None = None, threads: int = 1) -> Engine:
        if isa not in emulated_sets():
            return create(isa, cache, threads)
        engine = create(BASE, None if cache == default_directory() else cache, threads)
        return replace(engine, isa=emulated_sets()[isa], kernels=Emulated(engine.kernels.cache))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "create", staticmethod(made))
        yield
