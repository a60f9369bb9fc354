"""A group of nodes in its other forms: as written, or as integer operators, in qrun's arithmetic or in onnxruntime's,
also as on CPUs without VNNI."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from qrun.comparing.causes import AlternativeForm
from qrun.comparing.emulated import run_emulated
from qrun.comparing.sides import Unit, Values, extract, run_alone
from qrun.comparing.ties import before_rounding
from qrun.declare.frozen import frozen
from qrun.errors import QrunError
from qrun.ir import Array, Model
from qrun.ops import Arith
from qrun.passes import optimize


@frozen
class NodeGroup:
    """One tensor of a group of nodes. inputs: what the group reads, by name."""

    model: Model
    unit: Unit
    tensor: str
    inputs: Values

    def forms(self) -> tuple[AlternativeForm, ...]:
        """The forms that another runtime may have given it, from the simplest; none for a single node."""
        if len(self.unit.group) == 1:
            return ()
        plain = (self._form(fused, arith) for fused in (True, False) for arith in ("exact", "ort"))
        return (*plain, self._form(True, "ort", True), self._form(False, "ort", True))

    def _form(self, fused: bool, arith: Arith, saturating: bool = False) -> AlternativeForm:
        shape = "groups as integer operators" if fused else "the graph as written"
        steps = "the real value rounded once" if arith == "exact" and fused else "float32 steps"
        pairs = "; pairs of uint8 * int8 products saturate in int16, as on CPUs without VNNI" if saturating else ""
        cause = "pair-saturation" if saturating else "fused-requantization"
        return AlternativeForm(cause, f"{shape}, {steps}{pairs}", partial(self._run, fused, arith, saturating))

    def _run(self, fused: bool, arith: Arith, saturating: bool) -> Array | None:
        try:
            part = self._part(arith if fused else None)
            if saturating:
                return run_emulated(part, self.inputs, [self.tensor])[self.tensor]
            return run_alone(part, part.nodes, self.inputs, None, arith).get(self.tensor)
        except (QrunError, KeyError):
            return None

    def _part(self, fused: Arith | None) -> Model:
        part = extract(self.model, self.unit.group, self.inputs)
        part = replace(part, outputs=tuple(v for v in part.outputs if v.name == self.tensor))
        return part if fused is None else optimize(part, frozenset(), fused, "fused").model

    def before_rounding(self) -> Array | None:
        """What the one integer operator that the group can become would round; None if it becomes none, or more."""
        try:
            part = self._part("exact")
        except (QrunError, KeyError):
            return None
        if len(part.nodes) != 1:
            return None
        values = {**part.constants, **self.inputs}
        return before_rounding(part.nodes[0], [values.get(name) for name in part.nodes[0].inputs])
