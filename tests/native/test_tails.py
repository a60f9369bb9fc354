"""float32 operations made in the kernel of the sums that they follow: the bits of the nodes one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.models import make_model
from helpers.native import ISAS, codes, every_isa
from helpers.placed import elsewhere, same_runs
from onnx import ModelProto, TensorProto, helper, numpy_helper

import qrun

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, 3e38, -3e38, 1, -1e-3], F)
LAYERS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 9, 8), (21, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((2, 16, 5, 5), (70, 16, 1, 1), {}),
    ((1, 64, 7, 6), (64, 1, 3, 3), {"group": 64, "pads": [1, 1, 1, 1]}),
    ((1, 20, 6, 6), (20, 1, 3, 3), {"group": 20, "pads": [1, 1, 1, 1]}),
    ((2, 8, 20), (12, 4, 3), {"group": 2}),
    ((3, 17, 40), (40, 33), {}),
    ((5, 24), (24, 130), {}),
]


class Layer:
    """DynamicQuantizeLinear, a product, and what follows it, node by node."""

    def __init__(self, which: int, rng: np.random.Generator) -> None:
        shape, weights, options = LAYERS[which]
        self.rng, self.shape = rng, shape
        self.conv = len(weights) > 2
        self.channels = weights[0] if self.conv else weights[1]
        self.rank = len(shape)
        self.tensors: list[Any] = []
        self.nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])]
        w = self.constant(codes(rng, weights, ("u8", "s8")[which % 2]))
        self.last = self.add("ConvInteger" if self.conv else "MatMulInteger", "q", w, "z", **options)
        self.made = [self.last]

    def constant(self, array: Any) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.tensors)}"))
        return f"c{len(self.tensors) - 1}"

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"t{len(self.nodes)}"], **attributes))
        return f"t{len(self.nodes) - 1}"

    def operand(self) -> str:
        """One number, one for each channel, or the scale of the run."""
        kind = self.rng.integers(4)
        if kind == 0:
            return "s"
        values = self.rng.normal(0, 30, self.channels if kind > 1 else 1).astype(F)
        if kind == 3:
            values[: len(SPECIAL)] = self.rng.permutation(SPECIAL)[: len(values)]
        shape = (-1, *(1,) * (self.rank - 2)) if self.conv else (-1,)
        return self.constant(values.reshape(shape if self.rng.random() < 0.5 else (1, *shape)))

    def step(self) -> None:
        kind = ("Mul", "Add", "Relu", "Clip")[self.rng.integers(4)]
        if kind in ("Mul", "Add"):
            inputs = [self.last, self.operand()]
            self.last = self.add(kind, *(inputs if self.rng.random() < 0.7 else inputs[::-1]))
        elif kind == "Clip":
            low, high = np.sort(self.rng.normal(0, 1000, 2)).astype(F)
            self.last = self.add(kind, self.last, self.constant(low), self.constant(high))
        else:
            self.last = self.add(kind, self.last)
        self.made.append(self.last)

    def model(self) -> ModelProto:
        return make_model(self.nodes, {"x": [None] * self.rank}, {self.last: None}, self.tensors, opset=17)

    def same(self, names: list[str], **options: Any) -> qrun.Session:
        feeds = ({"x": (self.rng.normal(0.3, 1, self.shape) * scale).astype(F)} for scale in (1, 30, 1, 1e-3))
        session = same_runs(self.model(), feeds, names, times=1, **options)
        assert elsewhere(session) == []
        return session


def kinds(session: qrun.Session) -> list[str]:
    """Of the kernel calls of the session's last program, but for those that prepare and quantize."""
    compiled = [made for p in session._runs.plans.values() if p.programs for made in p.programs._made.values() if made]
    calls = [call.section.spec.kind for call in compiled[-1].program.schedule.calls]
    return [
        kind for kind in calls if kind not in ("prepare", "range", "parameters", "codes", "runs", "elements", "blocks")
    ]


@every_isa
def test_every_kind_of_product(isa: str) -> None:
    for which in range(len(LAYERS)):
        layer = Layer(which, np.random.default_rng(which))
        layer.last = layer.add("Cast", layer.last, to=TensorProto.FLOAT)
        layer.last = layer.add("Mul", layer.last, "s")
        bias = np.linspace(-9, 9, layer.channels, dtype=F).reshape(-1, *(1,) * (layer.rank - 2) * layer.conv)
        layer.last = layer.add("Add", layer.last, layer.constant(bias))
        layer.last = layer.add("Clip", layer.last, layer.constant(F(-3)), layer.constant(F(60)))
        session = layer.same([layer.last], isa=isa, threads=1 + which % 2)
        assert "elementwise" not in kinds(session)


@pytest.mark.parametrize("seed", range(40))
def test_random_tails(seed: int) -> None:
    """Of many steps; some results in between are asked for, or read twice."""
    rng = np.random.default_rng(100 + seed)
    layer = Layer(seed % len(LAYERS), rng)
    layer.last = layer.add("Cast", layer.last, to=TensorProto.FLOAT)
    layer.made.append(layer.last)
    for _ in range(rng.integers(0, 9)):
        layer.step()
    if rng.random() < 0.3:
        layer.last = layer.add("Mul", layer.last, rng.choice(layer.made[1:]))
    names = [layer.last, *(name for name in layer.made if name != layer.last and rng.random() < 0.1)]
    with np.errstate(all="ignore"):
        layer.same(names, isa=ISAS[seed % len(ISAS)])


def test_a_scale_that_is_made_after_the_sums() -> None:
    layer = Layer(1, np.random.default_rng(3))
    layer.last = layer.add("Cast", layer.last, to=TensorProto.FLOAT)
    scale = layer.add("Mul", "s", layer.constant(F(0.5)))
    layer.last = layer.add("Mul", layer.last, scale)
    assert "elementwise" in kinds(layer.same([layer.last]))
