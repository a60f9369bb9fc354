"""A second side of a comparison that is qrun, but for what is planted in it; and reports as text."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qrun.comparing.comparison import Comparison
from qrun.comparing.sides import QrunSide, Unit
from qrun.errors import UnsupportedError
from qrun.ir import Array, Model
from qrun.report.screen import Out, Screen
from qrun.report.sheet import Sheet, print_sheet

Values = Mapping[str, Array]


@dataclass(frozen=True)
class Changed:
    """qrun, but for what some nodes give. hidden: tensors that it does not tell."""

    model: Model
    changes: Mapping[str, Array] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    name: str = "changed"
    label: str = "changed 1.0"

    @property
    def units(self) -> Sequence[Unit]:
        return [Unit(node, (node,)) for node in self.model.nodes]

    def run(self, feeds: Values) -> Mapping[str, Array | None]:
        values: dict[str, Array | None] = dict(feeds)
        for unit in self.units:
            if unit.node.name in self.refuses:
                raise UnsupportedError("QR013", "the model is refused", facts=[("got", "no")])
            values |= self.alone(unit, {n: a for n, a in values.items() if a is not None})
        return {n: a for n, a in values.items() if n not in self.hidden and n not in feeds}

    def alone(self, unit: Unit, values: Values) -> Mapping[str, Array | None]:
        if unit.node.name in self.refuses:
            raise UnsupportedError("QR013", "the node is refused", facts=[("got", "no kernel")])
        made = dict(QrunSide(self.model).alone(unit, values))
        return {n: self.changes.get(n, a) for n, a in made.items()}


def told(found: Comparison) -> dict[str, tuple[bool, str | None]]:
    """Tensor to: does it differ, and its cause if it does by itself."""
    return {t.name: (t.differs, t.guilt.reason.cause if t.guilt else None) for t in found.tensors}


def sheet_text(
    sheet: Sheet, width: int | None = None, markdown: bool = False, quiet: bool = False, encoding: str = "utf-8"
) -> str:
    """A report as a terminal of this width shows it; None: as it is in a pipe."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    screen = Screen(stream, terminal=width is not None, width=width, color=False)
    print_sheet(Out(screen, screen, quiet), sheet, markdown)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
