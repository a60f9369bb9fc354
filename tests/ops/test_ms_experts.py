"""MoE and QMoE of com.microsoft: against fractions, beside onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import assert_close, qrun_node
from helpers.support import MS, assert_equal, node_model, run_ort, run_qrun
from oracle.experts import dequantized, experts, plain, routes

import qrun
from qrun.ops import Context, find

F, H, BF = np.float32, np.float16, ml_dtypes.bfloat16
KINDS = ("relu", "gelu", "silu", "identity", "swiglu")
Arrays = list[Any]


class Mixture:
    """A node of MoE (bits: 0) or QMoE in one of its forms; the seed chooses it.

    cpu: a form that onnxruntime's CPU runs, and whose products it makes with the weights of the file: of those with 4
    bits, a scale for each row and zero points in one of two projections it makes others.
    """

    def __init__(
        self, seed: int, bits: int = 0, dtype: Any = F, cpu: bool = False, sizes: tuple[int, ...] = ()
    ) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.bits, self.dtype = bits, dtype
        self.tokens, self.count = sizes[2:] or (int(rng.integers(1, 4)), int(rng.integers(1, 5)))
        self.block = 16 if bits and seed % 3 == 1 else 0
        self.zeros = [seed // 3 % 2] * 3 if cpu else rng.integers(0, 2, 3).tolist()
        self.width, self.inner = sizes[:2] or ((16, 32) if self.block else (8, 4))
        kind = KINDS[seed % 5]
        fusion = (1 if cpu else seed // 5 % 3) if kind == "swiglu" else 0
        self.gate = not cpu and ((kind == "swiglu" and not fusion) or (kind != "swiglu" and seed % 4 == 1))
        self.made = self.inner * (2 if fusion else 1)
        self.attributes: dict[str, Any] = {
            "k": int(rng.integers(1, self.count + 1)),
            "activation_type": kind,
            "normalize_routing_weights": seed // 2 % 2,
            "swiglu_fusion": fusion,
            **({"activation_alpha": 1.702, "activation_beta": 1.0} if seed % 4 < 2 else {}),
            **({"swiglu_limit": 0.75} if seed % 4 == 0 else {}),
        }
        self.x = rng.normal(size=(self.tokens, self.width)).astype(dtype)
        self.probs = rng.normal(size=(self.tokens, self.count)).astype(dtype)
        if seed % 4 == 2:
            self.probs = np.round(self.probs)
        sizes = ((self.made, self.width), (self.width, self.inner), (self.inner, self.width))
        self.biases = [self.normal(self.count, n) if (seed + i) % 3 else None for i, (n, _) in enumerate(sizes)]
        self.widths = [bits] * 3
        if bits:
            self.attributes |= {"expert_weight_bits": bits, **({"block_size": self.block} if self.block else {})}
            if seed % 7 == 3 and not cpu:
                self.widths[1] = self.attributes["fc2_expert_weight_bits"] = (8, 2)[bits == 8]
            self.weights = [self.coded(*size, *own) for size, *own in zip(sizes, self.widths, self.zeros, strict=True)]
        else:
            self.weights = [[self.normal(self.count, *size)] for size in sizes]
        if not self.gate:
            self.weights[2], self.biases[2] = [None] * 3, None
        self.router_weights = np.abs(self.normal(self.tokens, self.count)) if bits and seed % 5 == 2 else None

    def normal(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape).astype(self.dtype)

    def coded(self, made: int, width: int, bits: int, zeros_given: int) -> Arrays:
        """Codes, scales, and zero points or None."""
        count, blocks = self.count, width // self.block if self.block else 1
        codes = self.rng.integers(0, 256, (count, made, width * bits // 8)).astype(np.uint8)
        shape = (count, made, blocks) if self.block else (count, made)
        scales = (self.rng.uniform(-0.1, 0.2, shape) / 2 ** (bits - 4)).astype(self.dtype)
        packed = (count, made, -(-blocks * bits // 8)) if self.block else (count, -(-made * bits // 8))
        zeros = self.rng.integers(0, 256, packed).astype(np.uint8)
        return [codes, scales, zeros if zeros_given else None]

    @property
    def inputs(self) -> Arrays:
        (first, second, third), biases = self.weights, self.biases
        if not self.bits:
            return [self.x, self.probs, *first, biases[0], *second, biases[1], third[0], biases[2]]
        given = [x for parts, bias in zip(self.weights, biases, strict=True) for x in (*parts[:2], bias)]
        return [self.x, self.probs, *given, *(parts[2] for parts in self.weights), self.router_weights]

    @property
    def name(self) -> str:
        return "QMoE" if self.bits else "MoE"

    def expected(self) -> np.ndarray:
        weights = [
            None if parts[0] is None
            else dequantized(*parts, bits, self.block) if self.bits else plain(parts[0])
            for parts, bits in zip(self.weights, self.widths, strict=True)
        ]  # fmt: skip
        routed = routes(self.probs, self.router_weights, self.attributes, bool(self.bits))
        return experts(self.x, routed, weights, self.biases, self.attributes)


@pytest.mark.parametrize("dtype", [F, H, BF])
@pytest.mark.parametrize("bits", [0, 2, 4, 8])
def test_against_the_oracle(bits: int, dtype: Any) -> None:
    first = 0 if bits in (0, 4) else 20  # 20 have every activation, fusion, block and form of routing
    for seed in range(first, first + (20 if dtype == F else 6)):
        form = Mixture(seed, bits, dtype)
        made = qrun_node(form.name, form.inputs, form.attributes, domain=MS)
        assert_equal(made, form.expected(), f"seed {seed} {form.attributes}", signed_zeros=False)


@pytest.mark.parametrize("dtype", [F, H])
@pytest.mark.parametrize("bits", [0, 2, 4, 8])
def test_beside_onnxruntime(bits: int, dtype: Any) -> None:
    """What it quantizes in the run, ``ort`` does too. Its CPU has MoE in float32 only."""
    if dtype == H and not bits:
        return
    for seed in range(30):
        form = Mixture(seed, bits, dtype, cpu=True, sizes=(64, 32, 1 + seed % 5, 2 + seed % 3))
        if bits == 4:
            form.attributes["accuracy_level"] = seed // 3 % 2 * 4
        model, feeds = node_model(form.name, form.inputs, form.attributes, domain=MS, opset=17, outputs=[dtype],
                                  constants=[i for i, x in enumerate(form.inputs) if i > 1 and x is not None])  # fmt: skip
        got, want = run_qrun(model, feeds, arith="ort")[0], run_ort(model, feeds)[0]
        reach = 2e-5 if dtype == F else 1e-2
        assert_close(got, want, f"seed {seed} {form.attributes}", reach, reach * float(np.abs(want).max()))


def shares(op_type: str, probs: Any, arith: Any = "exact", weights: Any = None, **attributes: Any) -> np.ndarray:
    """What each expert has of each token: experts that make their own number whatever they are given."""
    probs = np.asarray(probs, F)
    tokens, count = probs.shape
    own = np.eye(count, 8, dtype=F)
    x = np.ones((tokens, 8), F)
    if op_type == "MoE":
        inputs = [x, probs, np.zeros((count, 4, 8), F), None, np.zeros((count, 8, 4), F), own]
    else:
        codes, scales = np.full((count, 8, 4), 0x88, np.uint8), np.ones((count, 8), F)
        inputs = [x, probs, codes, scales, None, codes, scales, own, *[None] * 6]
        inputs += [] if weights is None else [np.asarray(weights, F)]
    found = find(MS, op_type, 1)
    assert found is not None
    return np.asarray(found(*inputs, **attributes, ctx=Context(arith=arith)))[:, :count]


def test_who_is_chosen() -> None:
    """The greatest; of equal ones the last. Shares of MoE are of all experts, those of QMoE of the chosen ones."""
    third = np.exp(1) / (3 + np.exp(1))
    assert_close(shares("MoE", [[0, 0, 1, 0]], k=2), np.array([[0, 0, third, (1 - third) / 3]], F))
    half = np.exp(1) / (1 + np.exp(1))
    for more in ({}, {"normalize_routing_weights": 1}):
        assert_close(shares("QMoE", [[0, 0, 1, 0]], k=2, **more), np.array([[0, 0, half, 1 - half]], F))
    assert_close(shares("MoE", [[0, 0, 1, 0]], k=2, normalize_routing_weights=1), np.array([[0, 0, half, 1 - half]], F))
    assert shares("MoE", [[0, -200]], k=2).tolist() == [[1, 0]]


def test_router_weights_are_shares() -> None:
    probs, weights = [[1, 3, 2], [1, 2, 3], [3, 2, 1]], [[5, 1, 3], [0, 0, 0], [2, -1, 0]]
    assert shares("QMoE", probs, k=2, weights=weights).tolist() == [[0, 1, 3], [0, 0, 0], [2, -1, 0]]
    normal = shares("QMoE", probs, k=2, weights=weights, normalize_routing_weights=1)
    assert normal.tolist() == [[0, 0.25, 0.75], [0, 0, 0], [2, -1, 0]]
    assert shares("QMoE", probs, "ort", k=2, weights=weights).tolist() == [[0, 1, 3], [0, 0, 0], [2, 0, 0]]


@pytest.mark.parametrize("op_type", ["MoE", "QMoE"])
def test_nan_is_chosen_first_and_stays(op_type: str) -> None:
    """onnxruntime gives such tokens nothing, and so does ``ort``."""
    probs = [[0, np.nan, 9, 1], [np.nan] * 4, [-np.inf, 1, 0, -np.inf]]
    exact = shares(op_type, probs, k=2)
    assert np.isnan(exact[0, 1]), np.isnan(exact[1]).all()
    emulated = shares(op_type, probs, "ort", k=2)
    assert not emulated[:2].any()
    assert_equal(emulated[2], exact[2])


def test_infinities_of_who_has_no_share_do_not_count() -> None:
    form = Mixture(0)
    form.weights[0][0][:] = np.inf
    x, probs = np.ones((1, form.width), F), np.full((1, form.count), -300, F)
    probs[0, 0], form.weights[0][0][0] = 0, 1
    made = qrun_node("MoE", [x, probs, *form.inputs[2:]], {**form.attributes, "k": form.count}, domain=MS)
    assert np.isfinite(made).all()


@pytest.mark.parametrize("bits", [0, 4])
def test_no_tokens_and_a_batch(bits: int) -> None:
    form = Mixture(2, bits, sizes=(8, 8, 6, 3))
    whole = qrun_node(form.name, form.inputs, form.attributes, domain=MS)
    batch = qrun_node(form.name, [form.x.reshape(2, 3, 8), *form.inputs[1:]], form.attributes, domain=MS)
    assert_equal(batch, whole.reshape(2, 3, 8))
    form.x, form.probs = form.x[:0], form.probs[:0]
    form.router_weights = None
    assert qrun_node(form.name, form.inputs, form.attributes, domain=MS).shape == (0, 8)


def test_cost_counts_the_chosen_experts() -> None:
    form = Mixture(1, sizes=(8, 4, 3, 4))
    assert form.gate, form.attributes
    shapes = [() if x is None else x.shape for x in form.inputs]
    found, coded = find(MS, "MoE", 1), find(MS, "QMoE", 1)
    assert found is not None
    assert coded is not None
    assert found.cost(shapes, [shapes[0]], {**form.attributes, "k": 2}) == 3 * 2 * 8 * 4 * 3
    form = Mixture(9, 4, cpu=True, sizes=(8, 4, 3, 4))
    shapes = [() if x is None else x.shape for x in form.inputs]
    assert coded.cost(shapes, [shapes[0]], {**form.attributes, "k": 1}) == 3 * 8 * 4 * 3


def plain_node(bits: int) -> tuple[Arrays, dict[str, Any]]:
    x, probs = np.ones((3, 8), F), np.ones((3, 2), F)
    if not bits:
        return [x, probs, np.ones((2, 4, 8), F), None, np.ones((2, 8, 4), F), None, None, None], {"k": 1}
    codes, scales = [np.ones((2, n, w), np.uint8) for n, w in ((4, 4), (8, 2))], [np.ones((2, n), F) for n in (4, 8)]
    return [x, probs, codes[0], scales[0], None, codes[1], scales[1], *[None] * 14], {"k": 1}


REFUSED: list[tuple[int, str, dict[int, Any], dict[str, Any]]] = [
    (0, "input has shape", {0: np.ones(8, F)}, {}),
    (0, "router_probs has shape", {1: np.ones((2, 2), F)}, {}),
    (0, "fc1_experts_weights has shape", {2: np.ones((2, 8), F)}, {}),
    (0, "fc1_experts_weights has shape", {2: np.ones((2, 4, 7), F)}, {}),
    (0, "fc2_experts_weights has shape", {4: np.ones((2, 8, 5), F)}, {}),
    (0, "fc1_experts_bias has shape", {3: np.ones((2, 3), F)}, {}),
    (0, "fc3_experts_bias has shape", {6: np.ones((2, 4, 8), F), 7: np.ones((1, 4), F)}, {}),
    (0, "fc3_experts_weights has shape", {6: np.ones((2, 4, 9), F)}, {}),
    (0, "k is 3", {}, {"k": 3}),
    (0, "k is 0", {}, {"k": 0}),
    (0, "activation_type is Relu", {}, {"activation_type": "Relu"}),
    (0, "swiglu has no third projection", {}, {"activation_type": "swiglu"}),
    (
        0,
        "there are two third projections",
        {6: np.ones((2, 4, 8), F)},
        {"activation_type": "swiglu", "swiglu_fusion": 1},
    ),
    (0, "swiglu_fusion is 3", {}, {"swiglu_fusion": 3}),
    (0, "swiglu_limit is -1", {}, {"swiglu_limit": -1.0}),
    (0, "use_sparse_mixer is 1", {}, {"use_sparse_mixer": 1}),
    (4, "fc1_experts_weights has shape", {2: np.ones((2, 4, 5), np.uint8)}, {}),
    (4, "fc2_experts_weights has shape", {5: np.ones((2, 8), np.uint8)}, {}),
    (4, "fc1_scales is missing", {3: None}, {}),
    (4, "fc1_scales has shape", {3: np.ones((2, 4, 1), F)}, {}),
    (4, "fc2_zero_points has shape", {12: np.ones((2, 8), np.uint8)}, {}),
    (4, "fc1_global_scale is given", {15: np.ones(2, F)}, {}),
    (4, "router_weights has shape", {14: np.ones((3, 3), F)}, {}),
    (4, "fc1 has rows of 8 codes", {}, {"block_size": 16}),
    (4, "block_size is 24", {}, {"block_size": 24}),
    (4, "fc1_expert_weight_bits is 3", {}, {"expert_weight_bits": 3}),
    (4, "fc2_expert_weight_bits is 5", {}, {"fc2_expert_weight_bits": 5}),
    (4, "quant_type is fp8", {}, {"quant_type": "fp8"}),
    (4, "weights_prepacked is 1", {}, {"weights_prepacked": 1}),
]


@pytest.mark.parametrize(("bits", "text", "replaced", "changed"), REFUSED)
def test_refusals(bits: int, text: str, replaced: dict[int, Any], changed: dict[str, Any]) -> None:
    inputs, attributes = plain_node(bits)
    for place, value in replaced.items():
        inputs[place] = value
    with pytest.raises(qrun.QrunError, match=text):
        qrun_node("QMoE" if bits else "MoE", inputs, {**attributes, **changed}, domain=MS)
