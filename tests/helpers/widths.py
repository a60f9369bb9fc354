"""Instruction sets whose vectors are as wide differ in products of bytes only:
of them one stands for all in other tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from helpers.native import SETS, Test, thin
from qrun.declare.frozen import fields_of, replace
from qrun.native.emit.isa import ISAS, Isa
from qrun.native.emit.spec import KernelSpec
from qrun.native.machine.compile import Kernels, kernel_text

OF_PRODUCTS = ("dot", "rows")
"""What of a set's record only products of bytes depend on; beside its name, and what it asks of the CPU."""
CHOSEN = "coded_product"
"""The kind of kernel that a planner chooses where the set has no products of bytes: its text does not tell."""
_FEATURES = re.compile(r'"target-features"="[^"]*"')


def width(isa: Isa) -> str:
    """Equal for sets that differ in products of bytes only."""
    return repr([getattr(isa, f) for f in fields_of(Isa) if f not in (*OF_PRODUCTS, "name", "features", "needs")])


BY_NAME = {isa.name: isa for isa in ISAS}
WIDTHS = [name for at, name in enumerate(SETS) if width(BY_NAME[name]) not in {width(BY_NAME[n]) for n in SETS[:at]}]
"""The best set of each width; one that is emulated only where no other has it."""


def every_width(test: Test) -> Test:
    """Parametrize `isa` with one set of each width. The test fails if a kernel of it is another one on other sets."""
    return pytest.mark.usefixtures("one_for_all")(pytest.mark.parametrize("isa", WIDTHS)(test))


def thin_width(*values: Any, best: int = 1, other: int = 3, name: str = "value") -> Callable[[Test], Test]:
    """As `thin` does, on one set of each width."""
    thinned = thin(*values, best=best, other=other, name=name, sets=WIDTHS)
    return lambda test: pytest.mark.usefixtures("one_for_all")(thinned(test))


def alike(spec: KernelSpec, isa: str) -> bool:
    """Whether the kernel has the same LLVM IR on another set, but for the features of the CPU that it names."""
    own, other = (_FEATURES.sub("", kernel_text(each)) for each in (spec, replace(spec, isa=isa)))
    return own == other


@cache
def differing(spec: KernelSpec) -> tuple[str, ...]:
    """The sets of the same width on which a specification gives other IR;
    of sets with equal products one is looked at."""
    if spec.kind == CHOSEN:
        return tuple(SETS)
    own = BY_NAME[spec.isa]
    others = (isa for name, isa in BY_NAME.items() if name in SETS and width(isa) == width(own))
    first = {str([getattr(isa, name) for name in OF_PRODUCTS]): isa.name for isa in (*reversed([*others]), own)}
    return tuple(name for name in first.values() if name != spec.isa and not alike(spec, name))


@contextmanager
def one_for_all() -> Iterator[None]:
    """At its end every kernel that was asked for meanwhile was the same on all sets of its width."""
    asked: dict[KernelSpec, None] = {}
    get = Kernels.get

    def noted(self: Kernels, spec: KernelSpec) -> object:
        asked[spec] = None
        return get(self, spec)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernels, "get", noted)
        yield
    differ = {spec: others for spec in asked if (others := differing(spec))}
    assert not differ, f"every_isa is for these kernels: {differ}"
