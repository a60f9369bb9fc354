"""QR409 against plain integers, and against onnxruntime on a processor that saturates."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx.parser
import pytest
from helpers.support import MS, node_model, pairs_saturate, run_ort

import qrun
from qrun.checking.rules import Finding
from qrun.comparing.choices import sides
from qrun.comparing.runtimes import compare_runtimes

Array = np.ndarray[Any, Any]
SEED = 20261121
U8, I8, F32 = np.uint8, np.int8, np.float32
ONE, A_ZERO, B_ZERO = F32(1), U8(7), I8(3)
PRODUCTS = ("MatMulInteger", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul")
STEP = F32(1024)
"""Of the output, where it is uint8: a power of two, so that its quotients are exact in any arithmetic."""
CONVS = [
    (4, 1, 1, {}), (3, 1, 1, {}), (1, 3, 1, {}), (3, 3, 1, {"pads": [1, 1, 1, 1]}), (6, 3, 1, {"strides": [2, 2]}),
    (8, 3, 2, {"pads": [0, 1, 1, 0]}), (6, 3, 2, {"auto_pad": "SAME_UPPER"}), (16, 2, 4, {"dilations": [2, 2]}),
]  # fmt: skip
"""Input channels, kernel, groups, attributes."""


@pytest.fixture
def saturating() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    if not pairs_saturate():
        pytest.skip("onnxruntime adds products exactly on this processor")


def pair_sums(columns: Array, codes: Array) -> Array:
    """[terms, positions] by [terms, channels] as [pairs, positions, channels], a last single term with 0."""
    odd = [(0, len(codes) % 2), (0, 0)]
    x, w = (np.pad(a.astype(np.int64), odd) for a in (columns, codes))
    return x[0::2, :, None] * w[0::2, None, :] + x[1::2, :, None] * w[1::2, None, :]


def accumulators(columns: Array, codes: Array, saturate: bool) -> Array:
    """The int32 sums [positions, channels] of raw codes, less what the zero points add, with int16 pairs or without."""
    sums = pair_sums(columns, codes)
    total = (np.clip(sums, -(2**15), 2**15 - 1) if saturate else sums).sum(0)
    x, w = columns.astype(np.int64), codes.astype(np.int64)
    corrections = int(A_ZERO) * w.sum(0)[None, :] + int(B_ZERO) * x.sum(0)[:, None]
    return total - corrections + len(codes) * int(A_ZERO) * int(B_ZERO)


def leaving(columns: Array, codes: Array) -> int:
    sums = pair_sums(columns, codes)
    return int(np.count_nonzero((sums < -(2**15)) | (sums >= 2**15)))


def requantized(acc: Array) -> Array:
    return np.clip(np.rint(acc / float(STEP)) + 128, 0, 255).astype(U8)


def weights(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    most = int(rng.choice([64, 66, 80, 127]))
    return rng.integers(-most, most + 1, shape).astype(I8)


def codes_of(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    x = rng.integers(0, 256, shape)
    return np.where(rng.random(shape) < 0.4, rng.choice([0, 255], shape), x).astype(U8)


def product(op: str, a: Array, b: Array) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """a [M,K] by stored b [K,N]; of DynamicQuantizeMatMul a is float, quantized to the codes of a:
    its range has step 1."""
    if op == "MatMulInteger":
        return node_model(op, [a, b, A_ZERO, B_ZERO], outputs=[np.int32], constants=[1, 2, 3], opset=13)
    if op in ("QLinearMatMul", "QGemm"):
        inputs = [a, ONE, A_ZERO, b, ONE, B_ZERO, *([None] * (op == "QGemm")), STEP, U8(128)]
        domain = MS if op == "QGemm" else ""
        return node_model(op, inputs, domain=domain, outputs=[U8], constants=range(1, len(inputs)), opset=13)
    if op == "MatMulIntegerToFloat":
        return node_model(op, [a, b, ONE, ONE, A_ZERO, B_ZERO], domain=MS, constants=range(1, 6), opset=13)
    a[0, 0], a[0, -1] = 0, 255
    real = a.astype(F32) - F32(A_ZERO)
    return node_model(op, [real, b, ONE, B_ZERO], domain=MS, constants=range(1, 4), opset=13)


def found(model: onnx.ModelProto, feeds: dict[str, Array] | None = None) -> Finding | None:
    return next((f for f in qrun.check(model, None, feeds) if f.rule == "QR409"), None)


def counted(finding: Finding | None) -> int:
    """The sums that exceed int16, as the finding says."""
    assert finding is not None
    if "none of" in finding.got:
        return 0
    text = re.search(r"with these inputs, (\d+) of \d+ sums exceed int16", finding.got)
    assert text is not None, finding.got
    return int(text[1])


def shown(op: str, acc: Array) -> Array:
    return requantized(acc) if op in ("QLinearMatMul", "QGemm") else acc


@pytest.mark.parametrize("op", PRODUCTS)
def test_matrix_products_on_this_processor(op: str, saturating: None) -> None:
    """onnxruntime gives the exact sums where the rule is silent, and those of saturated pairs where it is not."""
    silent = loud = wrong = 0
    for case in range(60):
        rng = np.random.default_rng([SEED, PRODUCTS.index(op), case])
        m, k, n = (int(v) for v in rng.integers([1, 2, 1], [6, 40, 40]))
        a, b = codes_of(rng, (m, k)), weights(rng, (k, n))
        model, feeds = product(op, a, b)
        theirs = run_ort(model, feeds)[0]
        name = f"seed {SEED}, {op}, case {case}: [{m},{k}] by [{k},{n}]"
        finding = found(model, feeds)
        exact, saturated = (shown(op, accumulators(a.T, b, s)) for s in (False, True))
        assert np.array_equal(theirs, saturated), name
        silent, loud, wrong = silent + (finding is None), loud + bool(finding), wrong + bool((theirs != exact).any())
        if finding is None:
            assert np.array_equal(theirs, exact), name
        else:
            assert counted(finding) == leaving(a.T, b), name
    assert min(silent, loud, wrong) > 5


@pytest.mark.parametrize("op", PRODUCTS)
def test_the_worst_pair_is_wrong_by_what_int16_lacks(op: str, saturating: None) -> None:
    """255 at the two places that the finding names, 0 elsewhere (and 255 at the end,
    to give a dynamic range its step)."""
    for case in range(20):
        rng = np.random.default_rng([SEED, 9, case])
        b = rng.integers(-60, 61, (2 * int(rng.integers(3, 20)), 1)).astype(I8)
        place = 2 * int(rng.integers(1, len(b) // 2 - 1))
        b[place : place + 2, 0] = rng.integers(65, 128, 2) * rng.choice([1, -1])
        a = np.zeros((1, len(b)), U8)
        a[0, place : place + 2] = 255
        model, feeds = product(op, a, b)
        finding = found(model)
        assert finding is not None
        total = 255 * int(b[place : place + 2].sum())
        assert finding.got.startswith(f"255 * {b[place, 0]} + 255 * {b[place + 1, 0]} = {total} in output channel 0")
        lacking = total - min(max(total, -(2**15)), 2**15 - 1)
        exact = accumulators(a.T, b, False)
        theirs = run_ort(model, feeds)[0]
        assert np.array_equal(theirs, shown(op, exact - lacking)), (SEED, case)
        assert op in ("QLinearMatMul", "QGemm") or not np.array_equal(theirs, shown(op, exact)), (SEED, case)


def convolution(
    rng: np.random.Generator, channels: int, kernel: int, group: int, attributes: dict[str, Any]
) -> tuple[onnx.ModelProto, dict[str, Array], Array]:
    x = codes_of(rng, (2, channels, 7, 6))
    w = weights(rng, (4 * group, channels // group, kernel, kernel))
    inputs = [x, ONE, A_ZERO, w, ONE, I8(0), STEP, U8(128)]
    model, feeds = node_model(
        "QLinearConv", inputs, {"group": group, **attributes}, outputs=[U8], constants=range(1, 8), opset=13
    )
    return model, feeds, w


def windows(x: Array, w: Array, group: int, attributes: dict[str, Any]) -> list[tuple[Array, Array]]:
    """The matrix product of each image and group: columns with input channels innermost, one loop for each index."""
    kernel, step, gap = w.shape[2], attributes.get("strides", [1])[0], attributes.get("dilations", [1])[0]
    pads = attributes.get("pads", [0, 0, 0, 0])
    if "auto_pad" in attributes:
        pads = [(kernel - 1) // 2, (kernel - 1) // 2, kernel // 2, kernel // 2]
    room = ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3]))
    wide = np.pad(x, room, constant_values=int(A_ZERO))
    high, wide_out = ((s - (kernel - 1) * gap - 1) // step + 1 for s in wide.shape[2:])
    depth, parts = w.shape[1], []
    for image in wide:
        for g in range(group):
            rows = [
                image[g * depth + c, i * gap : i * gap + high * step : step, j * gap : j * gap + wide_out * step : step]
                for i in range(kernel) for j in range(kernel) for c in range(depth)
            ]  # fmt: skip
            codes = w[4 * g : 4 * g + 4].transpose(2, 3, 1, 0).reshape(-1, 4)
            parts.append((np.array([r[:high, :wide_out].reshape(-1) for r in rows]), codes))
    return parts


def convolved(parts: list[tuple[Array, Array]], group: int, shape: tuple[int, ...], saturate: bool) -> Array:
    made = [
        np.clip(sums, -(2**15), 2**15 - 1).sum(0) if saturate else sums.sum(0)
        for sums in (pair_sums(*part) for part in parts)
    ]
    made = [acc - int(A_ZERO) * w.astype(np.int64).sum(0) for acc, (_, w) in zip(made, parts, strict=True)]
    images = [np.concatenate([m.T for m in made[i : i + group]]) for i in range(0, len(made), group)]
    return requantized(np.array(images)).reshape(shape)


@pytest.mark.parametrize(("channels", "kernel", "group", "attributes"), CONVS, ids=str)
def test_convolutions(channels: int, kernel: int, group: int, attributes: dict[str, Any]) -> None:
    """The counts are those of plain loops, on any processor; where onnxruntime saturates, so are its results."""
    live = pytest.importorskip("onnxruntime") and pairs_saturate()
    silent = loud = 0
    for case in range(12):
        rng = np.random.default_rng([SEED, channels, kernel, group, case])
        model, feeds, w = convolution(rng, channels, kernel, group, attributes)
        parts = windows(feeds["i0"], w, group, attributes)
        finding = found(model, feeds)
        silent, loud = silent + (finding is None), loud + bool(finding)
        count = sum(leaving(*part) for part in parts)
        assert count == (counted(finding) if finding else 0), (SEED, case)
        theirs = run_ort(model, feeds)[0]
        exact, saturated = (convolved(parts, group, theirs.shape, s) for s in (False, True))
        assert np.array_equal(theirs, saturated if live else exact), (SEED, case)
        if finding is None:
            assert np.array_equal(theirs, exact), (SEED, case)
    assert loud
    assert silent


@pytest.mark.parametrize("op", PRODUCTS)
def test_counts_of_matrix_products(op: str) -> None:
    for case in range(20):
        rng = np.random.default_rng([SEED, 5, case])
        a, b = codes_of(rng, (3, 9)), rng.integers(-127, 128, (9, 5)).astype(I8)
        b[0], b[1] = 100, 90
        model, feeds = product(op, a, b)
        assert counted(found(model, feeds)) == leaving(a.T, b), (SEED, op, case)


def test_batches_of_matrices_are_counted_each() -> None:
    rng = np.random.default_rng(SEED)
    a, b = codes_of(rng, (2, 3, 8)), rng.integers(90, 128, (2, 8, 4)).astype(I8)
    model, feeds = node_model("MatMulInteger", [a, b, A_ZERO], outputs=[np.int32], constants=[1, 2], opset=13)
    want = sum(leaving(one.T, codes) for one, codes in zip(a, b, strict=True))
    assert want > 0
    assert counted(found(model, feeds)) == want


def test_inputs_that_do_no_harm() -> None:
    b = np.full((4, 2), 127, I8)
    model, feeds = product("MatMulInteger", np.full((1, 4), 9, U8), b)
    finding = found(model, feeds)
    assert finding is not None
    assert "with these inputs, none of 4 sums exceeds int16" in finding.got
    assert "recorded" not in (found(model) or finding).got


@pytest.mark.parametrize("op", ["QLinearConv", "ConvInteger"])
def test_nodes_that_have_other_kernels(op: str, saturating: None) -> None:
    """Depthwise convolutions, and ConvInteger: no finding, and exact sums from the worst weights and inputs."""
    x = np.full((1, 8, 5, 5), 255, U8)
    w = np.full((8, 1, 3, 3) if op == "QLinearConv" else (4, 8, 3, 3), 127, I8)
    if op == "QLinearConv":
        inputs: list[Any] = [x, ONE, A_ZERO, w, ONE, I8(0), F32(4096), U8(0)]
        model, feeds = node_model(op, inputs, {"group": 8}, outputs=[U8], constants=range(1, 8), opset=13)
        want = np.rint((255 - int(A_ZERO)) * 127 * 9 / 4096)
    else:
        model, feeds = node_model(op, [x, w, A_ZERO], outputs=[np.int32], constants=[1, 2], opset=13)
        want = (255 - int(A_ZERO)) * 127 * 72
    assert found(model) is None
    assert (run_ort(model, feeds)[0] == want).all()


@pytest.mark.parametrize("quantized", [True, False])
def test_qdq_form_saturates_where_it_is_fused(quantized: bool, saturating: None) -> None:
    import onnxruntime as ort

    end = "q = QuantizeLinear(c, ys, yz)\ny = DequantizeLinear(q, ys, yz)" if quantized else "y = Sigmoid(c)"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,2,1,1] x) => (float[1,1,1,1] y)
        <float s = {{1.0}}, float tiny = {{0.0001}}, uint8 z = {{0}}, int8[1,2,1,1] w = {{127, 127}}, int8 wz = {{0}}, float ys = {{512.0}},
         uint8 yz = {{0}}>
        {{
            xf = DequantizeLinear(x, s, z)
            wf = DequantizeLinear(w, {"s" if quantized else "tiny"}, wz)
            c = Conv(xf, wf)
            {end}
        }}
    """)
    feeds = {"x": np.full((1, 2, 1, 1), 255, U8)}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    theirs = float(session.run(None, feeds)[0].reshape(()))
    finding = found(qrun.load(model), feeds)
    if quantized:
        assert counted(finding) == 1
        assert theirs == 512 * np.rint((2**15 - 1) / 512)
    else:
        assert finding is None
        assert theirs == pytest.approx(1 / (1 + np.exp(-64770e-4)), rel=1e-5)


SIGNED = """
    <ir_version: 8, opset_import: ["" : 13]>
    main (float[1,2,1,1] x) => (float[1,1,1,1] y SECOND)
    <float s = {1.0}, int8 z = {-28}, int8[1,2,1,1] w = {127, 100}, int8 wz = {0}, float ys = {512.0}, int8 yz = {0}>
    {
        q = QuantizeLinear(x, s, z)
        xf = DequantizeLinear(q, s, z)
        wf = DequantizeLinear(w, s, wz)
        c = Conv(xf, wf)
        r = QuantizeLinear(c, ys, yz)
        y = DequantizeLinear(r, ys, yz)
        MORE
    }
"""
"""A Conv of int8 in QDQ form. Its input 155 has the code 127, which is 255 as uint8, and its zero point is 100."""


def signed(second: str = "", more: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(SIGNED.replace("SECOND", second).replace("MORE", more))


FULL = {"x": np.full((1, 2, 1, 1), 155, F32)}


def test_int8_activations_that_become_uint8() -> None:
    finding = found(signed(), FULL)
    assert counted(finding) == 1
    assert finding is not None
    assert f"255 * 127 + 255 * 100 = {255 * 227}" in finding.got


def test_int8_activations_that_stay_int8() -> None:
    """Two readers of the codes: onnxruntime computes the Conv in float."""
    assert found(signed(", float[1,2,1,1] v", "v = DequantizeLinear(q, s, z)"), FULL) is None


def test_the_emulation_of_int8_activations_saturates() -> None:
    model = qrun.load(signed().SerializeToString())
    exact, avx2 = sides(model, "avx2")
    assert exact.run(FULL)["y"] == 512 * np.rint(155 * 227 / 512)
    assert avx2.run(FULL)["y"] == 512 * np.rint((2**15 - 1 - 100 * 227) / 512)
    first = next(t for t in compare_runtimes(exact, avx2, FULL).tensors if t.differs)
    assert first.guilt is not None
    assert first.guilt.reason.cause == "pair-saturation"
