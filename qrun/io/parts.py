"""Inputs that are no tensors, put together from the tensors that files have of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field

from qrun.declare.frozen import changeable
from qrun.io import arrays
from qrun.ir import Array, TensorType
from qrun.ir.compound import joined

_PART = re.compile(r"(.+?)(\[\d{0,9}\]|\.keys|\.values)", re.S)
"""A tensor in a sequence or a map, as `qrun.ir.compound.tensors` names it."""


@changeable
class Parts:
    """The tensors read so far, by input and by ending (``[0]``, ``.keys``), and each input's source."""

    found: dict[str, dict[str, Array]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def add(self, known: Mapping[str, TensorType], name: str, array: Array, source: str) -> bool:
        """Keep the array if its name is that of a tensor in a known input; returns whether it is."""
        place = None if name in known else _PART.fullmatch(name)
        if place is None or place[1] not in known or known[place[1]].kind == "tensor":
            return False
        self.found.setdefault(place[1], {})[place[2]] = array
        self.sources.setdefault(place[1], source)
        return True

    def values(self) -> Iterator[tuple[str, Array, str]]:
        """Name, value and source of each input. Raises CallError where its tensors are not all there, or do not fit."""
        for name, parts in self.found.items():
            value, source = joined(parts), self.sources[name]
            if value is None:
                got = ", ".join(f"{name}{part}" for part in list(parts)[:6])
                expected = f"{name}[0], {name}[1], ... of one type, or {name}.keys and {name}.values"
                raise arrays.bad_file(source, got, expected)
            yield name, value, source
