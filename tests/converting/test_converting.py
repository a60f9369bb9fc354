"""qrun convert: the new form computes what its verdicts say for all codes, and keeps what a file has besides groups."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call, terminal
from helpers.quantized_graphs import random_quantized
from onnx import TensorProto, helper, numpy_helper, parser

import qrun
from qrun.arithmetics import FAMILIES
from qrun.converting.conversion import EQUAL, TIES
from qrun.converting.convert import ConversionOptions, Converter
from qrun.converting.requantize import has_integer_form

Array = np.ndarray[Any, Any]
LIMITS: Any = {"max_memory": None, "max_time": None}
DOUBLE = FAMILIES["tfl-double"]
MODELS = Path(__file__).parents[2] / "models"
INTEGER_FAMILIES = [name for name, family in FAMILIES.items() if has_integer_form(family)]


def convert(model: onnx.ModelProto, folder: Path, form: Any, family: Any = DOUBLE, **more: Any) -> Converter:
    path = folder / "source.onnx"
    onnx.save(model, path)
    return Converter(str(path), ConversionOptions(form, family, **more))


def written(made: Converter, folder: Path, name: str = "new.onnx") -> onnx.ModelProto:
    made.save(str(folder / name))
    model = onnx.load(folder / name)
    onnx.checker.check_model(model, full_check=True)
    return model


def feeds_of(model: onnx.ModelProto, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {v.name: [d.dim_value or 2 for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {name: (rng.normal(size=shape) * 2).astype(np.float32) for name, shape in shapes.items()}


def group(x_scale: float, w_scale: float, y_scale: float, w: int, bias: int, kind: Any = np.uint8) -> onnx.ModelProto:
    """DequantizeLinear, Conv of one weight, QuantizeLinear: the real quotient is (x * w + bias) * M."""
    info = np.iinfo(kind)
    zero = (int(info.min) + int(info.max)) // 2
    scales = {"xs": x_scale, "ws": w_scale, "ys": y_scale, "bs": np.float32(x_scale) * np.float32(w_scale)}
    stored = [numpy_helper.from_array(np.float32(value), name) for name, value in scales.items()]
    stored += [numpy_helper.from_array(np.array(zero, kind), "z"), numpy_helper.from_array(np.array(0, np.int8), "wz")]
    stored += [numpy_helper.from_array(np.full((1, 1, 1), w, np.int8), "w")]
    stored += [numpy_helper.from_array(np.array([bias], np.int32), "b")]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "z"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"]),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bf"]),
        helper.make_node("Conv", ["xf", "wf", "bf"], ["yf"]),
        helper.make_node("QuantizeLinear", ["yf", "ys", "z"], ["y"]),
    ]
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    ends = [helper.make_tensor_value_info(name, number, [1, 1, 256]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def all_codes(kind: Any) -> Array:
    return np.arange(256, dtype=np.uint8).view(kind).reshape(1, 1, 256)


def exact_codes(model: onnx.ModelProto, kind: Any) -> Array:
    """The codes of `group` in fractions."""
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    unit = Fraction(float(stored["xs"])) * Fraction(float(stored["ws"])) / Fraction(float(stored["ys"]))
    zero, info = int(stored["z"]), np.iinfo(kind)
    sums = [(int(x) - zero) * int(stored["w"].item()) + int(stored["b"].item()) for x in all_codes(kind).ravel()]
    return np.array([min(max(round(s * unit) + zero, info.min), info.max) for s in sums]).astype(kind)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_verdicts_hold_for_all_codes(kind: Any, tmp_path: Path) -> None:
    """The integer operator gives the fractions' codes; those of the float steps differ as the verdict says."""
    rng = np.random.default_rng(11)
    seen = set()
    for number in range(40):
        scales = np.exp(rng.uniform(-6, 1, 3)) if number % 4 else 2.0 ** rng.integers(-6, 2, 3)
        if number % 5 == 1:
            scales[:] = 1 / 90, 1 / 255, 1 / 3
        bias = int(rng.integers(-(2**20), 2**20)) if number % 3 == 0 else int(rng.integers(-300, 300))
        model = group(*scales, int(rng.integers(-128, 128)), bias, kind)
        made = convert(model, tmp_path, "qoperator")
        (found,) = made.conversion.groups
        seen.add(found.verdict.kind)
        integer = qrun.Session(written(made, tmp_path)).run({"x": all_codes(kind)})["y"]
        assert (integer.ravel() == exact_codes(model, kind)).all(), number
        literal = qrun.Session(model, fuse=False).run({"x": all_codes(kind)})["y"]
        apart = np.abs(literal.astype(int) - integer.astype(int)).max()
        assert apart <= (found.verdict.bound if found.verdict.bound is not None else 255), (number, found.verdict)
        assert found.verdict.kind != EQUAL or not apart, (number, found.verdict)
    assert {EQUAL, TIES} <= seen


def test_random_graphs_stay_within_their_verdicts(tmp_path: Path) -> None:
    """Both forms of random graphs; the way back gives the codes of the source."""
    for seed in range(6):
        model = random_quantized(seed)
        feeds = feeds_of(model, seed)
        made = convert(model, tmp_path, "qoperator")
        if not made.conversion.groups:
            continue
        assert not made.try_both(feeds, LIMITS).broken, seed
        written(made, tmp_path)
        back = Converter(str(tmp_path / "new.onnx"), ConversionOptions("qdq", DOUBLE))
        assert not back.conversion.left, seed
        assert not back.try_both(feeds, LIMITS).broken, seed
        again = qrun.Session(written(back, tmp_path, "back.onnx"), fuse=False).run(feeds)
        for name, value in qrun.Session(model, fuse=False).run(feeds).items():
            np.testing.assert_array_equal(again[name], value, str(seed))


@pytest.mark.parametrize(("name", "form"), [("qdq", "qoperator"), ("qoperator", "qdq"), ("qdq", "integer")])
def test_onnxruntime_gives_the_same_integers(name: str, form: str, tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    source = onnx.load(MODELS / "digits" / name / "model.onnx")
    for tensor in source.graph.initializer:
        if tensor.data_type == TensorProto.INT8:  # pairs of products of larger weights saturate on some CPUs
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) // 2, tensor.name))
    model = written(convert(source, tmp_path, form), tmp_path)
    tensors = [tensor for node in model.graph.node for tensor in node.output if tensor]
    present = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=tensor) for tensor in tensors if tensor not in present)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    feeds = feeds_of(model, 5)
    theirs = dict(
        zip(tensors, ort.InferenceSession(model.SerializeToString(), options).run(tensors, feeds), strict=True)
    )
    ours = qrun.Session(str(tmp_path / "new.onnx"), arith="ort", fuse=False).run(feeds, tensors)
    integers = [tensor for tensor in tensors if theirs[tensor].dtype.kind in "iu"]
    if form == "integer":  # beyond the mean, onnxruntime's float sums have another order
        integers = integers[: integers.index("sum_QuantizeLinear_Output") + 1]
    assert len(integers) > 5
    for tensor in integers:
        np.testing.assert_array_equal(ours[tensor], theirs[tensor], tensor)


@pytest.mark.parametrize("name", INTEGER_FAMILIES)
def test_the_integer_form_is_the_family(name: str, tmp_path: Path) -> None:
    """The function in onnxruntime and in qrun gives the plain integers of the family for every code; the deviation from
    the fractions is the one that the verdict states."""
    ort = pytest.importorskip("onnxruntime")
    family = FAMILIES[name]
    for scales, w, bias in [
        ((1 / 90, 1 / 255, 1 / 3), 77, 5),
        ((0.02, 0.5, 0.01), 1, 0),
        ((0.1, 0.004, 0.07), -90, 9000),
    ]:
        model = group(*scales, w, bias)
        made = convert(model, tmp_path, "integer", family)
        (found,) = made.conversion.groups
        new = written(made, tmp_path)
        feeds = {"x": all_codes(np.uint8)}
        (theirs,) = ort.InferenceSession(new.SerializeToString()).run(None, feeds)
        ours = qrun.Session(new).run(feeds)["y"]
        np.testing.assert_array_equal(ours, theirs)
        sums = (all_codes(np.uint8).astype(np.int64) - 127) * w + bias
        from qrun.arithmetics.family import Scales

        given = Scales(*(np.float32(scale) for scale in scales))  # type: ignore[arg-type]
        np.testing.assert_array_equal(ours, family.codes(sums, given, 127, 0, 255))
        apart = int(np.abs(ours.ravel().astype(int) - exact_codes(model, np.uint8).astype(int)).max())
        assert found.verdict.bound is None or apart <= found.verdict.bound


def test_the_stated_deviation_is_that_of_all_sums(tmp_path: Path) -> None:
    from qrun.arithmetics.family import Scales
    from qrun.converting.integer import deviation
    from qrun.converting.verdicts import OperandRange

    rng = np.random.default_rng(3)
    for number in range(30):
        family = FAMILIES[INTEGER_FAMILIES[number % len(INTEGER_FAMILIES)]]
        x, w, y = (np.exp(rng.uniform(-5, 0, 3))).astype(np.float32)
        zero = np.array(rng.integers(-128, 128), np.int8)
        tensors = tuple(OperandRange("", np.asarray(scale), zero) for scale in (x, w, y))
        low, high = int(rng.integers(-40_000, 0)), int(rng.integers(0, 40_000))
        got = deviation(family, tensors, np.array([low]), np.array([high]), (-128, 127))  # type: ignore[arg-type]
        sums = np.arange(low, high + 1)
        unit = Fraction(float(x)) * Fraction(float(w)) / Fraction(float(y))
        exact = np.clip([round(int(s) * unit) + int(zero) for s in sums], -128, 127)
        codes = family.codes(sums, Scales(x, w, y), int(zero), -128, 127)  # type: ignore[arg-type]
        assert got == np.abs(codes - exact).max(), (number, family.name)


def test_what_a_file_has_besides_groups_stays(tmp_path: Path) -> None:
    """Metadata, names, dynamic axes, external data, a local function and a branch that captures a group."""
    model = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1], metadata_props: ["author": "me"], doc_string: "a text">
        g (uint8[N,400] x, bool c) => (uint8[N,3] y, float[N,3] z)
        <float s = {0.5}, uint8 q = {3}, int8[1,3] w = {1,2,3}, int8 o = {0}> {
            xf = DequantizeLinear(x, s, q)
            wf = DequantizeLinear(w, s, o)
            [product] p = MatMul(xf, wf)
            y = QuantizeLinear(p, s, q)
            d = own.Twice(y)
            z = If (c) <then_branch = a () => (float[N,3] r) { r = Identity(d) },
                        else_branch = b () => (float[N,3] t) { e = Cast<to = 1>(y) t = Add(e, d) }>
        }
        <domain: "own", opset_import: ["" : 17]>
        Twice (v) => (u) { f = Cast<to = 1>(v) u = Add(f, f) }
        """
    )
    source = tmp_path / "m.onnx"
    weights = np.random.default_rng(2).integers(-9, 9, (400, 3)).astype(np.int8)
    model.graph.initializer[2].CopyFrom(numpy_helper.from_array(weights, "w"))
    onnx.save(model, source, save_as_external_data=True, location="m.data", size_threshold=0)
    feeds = {"x": np.random.default_rng(1).integers(0, 9, (2, 400)).astype(np.uint8), "c": np.array(False)}
    for form in ("qoperator", "integer"):
        made = Converter(str(source), ConversionOptions(form, DOUBLE))  # type: ignore[arg-type]
        trial = made.try_both(feeds, LIMITS)
        assert not trial.broken
        files = made.save(str(tmp_path / form))
        assert files == [str(tmp_path / form), str(tmp_path / f"{form}.data")]
        new = onnx.load(tmp_path / form)
        assert {f.name for f in new.functions} >= {"Twice"}
        assert (new.doc_string, new.metadata_props[0].value, new.graph.name) == ("a text", "me", "g")
        assert [value.name for value in new.graph.output] == ["y", "z"]
        assert new.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
        want, got = qrun.Session(str(source)).run(feeds), qrun.Session(str(tmp_path / form)).run(feeds)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])


def test_strict_leaves_what_may_differ(tmp_path: Path) -> None:
    made = convert(group(1 / 90, 1 / 255, 1 / 3, 77, 5), tmp_path, "qoperator")
    assert made.conversion.groups[0].verdict.kind == TIES
    made = convert(group(1 / 90, 1 / 255, 1 / 3, 77, 5), tmp_path, "qoperator", strict=True)
    assert not made.conversion.groups
    (kept,) = made.conversion.left
    assert kept.reason.startswith("not bit-equal: float32 errs by up to ")
    assert convert(group(0.5, 0.25, 0.5, 77, 5), tmp_path, "qoperator", strict=True).conversion.groups
    onnx.save(group(1 / 90, 1 / 255, 1 / 3, 77, 5), tmp_path / "m.onnx")
    done = call("convert", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "n.onnx"), "--to", "qoperator", "--strict")
    assert done.code == 1
    assert done.out.startswith("nothing to convert: no quantized group can become bit-equal integer operators")


def test_types_that_onnxruntime_lacks_stay(tmp_path: Path) -> None:
    """int8 with uint8 weights is legal, but onnxruntime has no kernel for it."""
    model = group(0.02, 0.5, 0.01, 1, 0, np.int8)
    for tensor in model.graph.initializer:
        if tensor.name in ("w", "wz"):
            tensor.data_type = TensorProto.UINT8
    (kept,) = convert(model, tmp_path, "qoperator").conversion.left
    assert kept.reason == "onnxruntime has no QLinearConv of int8 and uint8"


def test_fold_strip_and_opset(tmp_path: Path) -> None:
    model = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 13]>
        g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] unused = {3, 4}> {
            b = Add(a, a)
            y = Mul(x, b)
            dead = Neg(x)
        }
        """
    )
    made = convert(model, tmp_path, "", fold=True, strip=True, opset=17)
    new = written(made, tmp_path)
    assert [node.op_type for node in new.graph.node] == ["Mul"]
    assert [tensor.name for tensor in new.graph.initializer] == ["b"]
    assert new.opset_import[0].version == 17
    assert all(each.differing == 0 for each in made.try_both(feeds_of(model, 1), LIMITS).outputs)


def test_the_command(tmp_path: Path) -> None:
    qdq, target = str(MODELS / "digits" / "qdq" / "model.onnx"), str(tmp_path / "int.onnx")
    done = call("convert", qdq, "-o", target, "--to", "qoperator")
    assert done.code == 0, done.err
    first = "converted: 7 groups to integer operators: 1 bit-equal, 6 may differ by one next to a tie"
    assert " ".join(done.out.split()).startswith(first)
    assert f"wrote {target}" in done.err
    narrow = " ".join(terminal("convert", qdq, "-o", target, "--to", "integer", width=80).split())
    assert "tfl-double is up to 1 from the exact code" in narrow  # the proof moves below its row
    call("convert", qdq, "-o", target, "--to", "qoperator")
    report = call("convert", target, "-o", str(tmp_path / "qdq.onnx"), "--to", "qdq", "--json").json
    assert [each["becomes"] for each in report["groups"]][:1] == ["Conv"]
    assert not report["broken"]
    assert (report["exit_code"], len(report["files"])) == (0, 1)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["float", "--to", "qoperator"], 1, "nothing to convert: no quantized group can become integer operators"),
        (["qdq", "--to", "qdq"], 1, "nothing to convert: no quantized group can become QDQ groups"),
        (["qdq"], 2, "needs --to, --fold, --strip or --opset"),
        (["qdq", "--to", "integer", "--requantize", "fp32"], 2, "fp32: it needs floats"),
        (["qdq", "--to", "integer", "--requantize", "tfl-doubel"], 2, "did you mean --requantize tfl-double?"),
        (["qdq", "--to", "qoperator", "-o", "no/such/x.onnx"], 2, "no/such"),
        (["qdq", "--opset", "900"], 4, "onnx cannot convert the model to opset 900"),
        (["qdq", "--opset", "900"], 4, f"at most {onnx.defs.onnx_opset_version()}, the newest of onnx"),
        (["qdq", "--to", "qdq", "--requantize", "tfl-single"], 2, "--requantize goes with --to integer"),
    ],
)
def test_calls_that_cannot_be_done(words: list[str], code: int, text: str, tmp_path: Path) -> None:
    target = tmp_path / "x.onnx"
    ended = call("convert", str(MODELS / "digits" / words[0] / "model.onnx"), "-o", str(target), *words[1:])
    assert ended.code == code, ended.err
    assert text in ended.out + ended.err
    assert not target.exists()


def test_the_source_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(group(0.5, 0.25, 0.5, 77, 5), path)
    before = path.read_bytes()
    ended = call("convert", str(path), "-o", str(path), "--to", "qoperator")
    assert ended.code == 2
    assert "it is the model of this command" in ended.err
    assert path.read_bytes() == before
