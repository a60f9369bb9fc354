"""Chains of nodes on two sides: who is guilty, who inherits, and what can be compared at all."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes as md
import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.comparing import Changed, told
from helpers.models import make_model, typed
from helpers.support import node_model
from onnx import TensorProto, helper

import qrun
from qrun.cli.compare import AGAINST
from qrun.comparing.choices import sides
from qrun.comparing.comparison import Comparison
from qrun.comparing.differences import EXACT, NOISE, Tolerance, same
from qrun.comparing.emulated import NodeGroup
from qrun.comparing.record import record
from qrun.comparing.recordchanges import RecordComparison, compare_record
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import PeerSide, QrunSide, Unit, extract
from qrun.comparing.ties import before_rounding
from qrun.errors import CallError
from qrun.io.inputs import Feeds
from qrun.ir import Array, Model
from qrun.ir.compound import maps, sequence
from qrun.peers import Nodes, Peer
from qrun.report.compare import comparison_fields, first_facts, verdict
from qrun.report.json import document

f32, u8, i8, i32 = np.float32, np.uint8, np.int8, np.int32
needs_ort = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")


def chain() -> Model:
    """x -> Quantize q -> Dequantize d -> Quantize y, each with scale 1 and zero point 4."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "first"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "middle"),
        helper.make_node("QuantizeLinear", ["d", "half", "z"], ["y"], "last"),
    ]
    stored = {"s": f32(1), "z": u8(4), "half": f32(2)}
    model = make_model(nodes, {"x": ["N"]}, {"y": typed(TensorProto.UINT8, ["N"])}, stored, opset=13)
    return qrun.load(model.SerializeToString())


FEEDS = {"x": np.array([0.5, 1, 2.5, 3, 6, 7], f32)}


def compare(b: Changed, **more: bool) -> Comparison:
    return compare_runtimes(QrunSide(b.model), b, FEEDS, **more)


AWAY = np.array([5, 5, 7, 7, 10, 11], u8)
"""What `first` gives if ties go away from zero; the exact codes are [4, 5, 6, 7, 10, 11]."""


def test_the_first_is_guilty_and_the_others_inherit() -> None:
    found = compare(Changed(chain(), {"q": AWAY}))
    assert told(found) == {"q": (True, "tie-rounding"), "d": (True, None), "y": (True, None)}
    first = found.first
    assert first is not None
    assert (first.name, first.inputs, first.pair.difference.differing) == ("q", True, 2)
    assert [t.inputs for t in found.tensors] == [True, False, False]
    assert all(t.checked for t in found.tensors)


def test_isolated_only_the_guilty_differs() -> None:
    found = compare(Changed(chain(), {"q": AWAY}), isolate=True)
    assert told(found) == {"q": (True, "tie-rounding"), "d": (False, None), "y": (False, None)}
    assert [(n, p.difference.differing > 0) for n, p in found.outputs] == [("y", True)]


def test_two_are_guilty() -> None:
    """`last` reads other values on this side, and still does not give what they give:
    [0, 0, 1, 1, 3, 3] + 4 by floor."""
    last = np.floor((AWAY.astype(f32) - 4) / 2).astype(u8) + u8(4)
    found = compare(Changed(chain(), {"q": AWAY, "y": last}))
    assert told(found) == {"q": (True, "tie-rounding"), "d": (True, None), "y": (True, "tie-rounding")}
    guilt = found.tensors[2].guilt
    assert guilt is not None
    exact = np.rint((AWAY.astype(f32) - 4) / 2) + 4
    assert guilt.pair.difference.differing == np.count_nonzero(exact != last)


def test_a_tensor_that_one_side_does_not_tell() -> None:
    """`last` is then compared with the node before it as one; the cause is found all the same."""
    found = compare(Changed(chain(), {"q": AWAY}, hidden=("d",)))
    assert told(found) == {"q": (True, "tie-rounding"), "y": (True, None)}
    assert [n.name for n in found.tensors[1].unit.group] == ["middle", "last"]


def test_nothing_before_the_last_is_told() -> None:
    found = compare(Changed(chain(), {"q": AWAY}, hidden=("q", "d")))
    assert told(found) == {"y": (True, "unknown")}
    assert [n.name for n in found.tensors[0].unit.group] == ["first", "middle", "last"]


def test_piecewise_where_the_whole_is_refused() -> None:
    found = compare(Changed(chain(), {"y": np.zeros(6, u8)}, refuses=("middle",)))
    assert found.piecewise is not None
    causes = told(found)
    assert causes["q"] == (False, None)
    assert causes["d"] == (True, "refused")
    assert causes["y"][0]
    assert found.tensors[1].pair.difference.form == ("float32 [6]", "nothing")


def test_within_the_tolerance() -> None:
    found = compare_runtimes(QrunSide(chain()), Changed(chain(), {"q": AWAY}), FEEDS, Tolerance(1, 1, 1))
    assert found.equal
    assert not any(t.pair.identical for t in found.tensors)


def summed(change: float) -> tuple[Model, dict[str, Array], dict[str, Array]]:
    """x @ w -> m -> QuantizeLinear q (scale 1) -> DequantizeLinear d;
    feeds, and an m that is `change` off in one element."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "sums"),
        helper.make_node("QuantizeLinear", ["m", "s", "z"], ["q"], "rounds"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "last"),
    ]
    stored = {"w": np.array([[1, 20], [1, 20]], f32), "s": f32(1), "z": u8(0)}
    model = make_model(nodes, {"x": ["N", 2]}, {"d": ["N", 2]}, stored, opset=13)
    feeds = {"x": np.array([[1, 1.5], [0.25, 0.25]], f32)}
    exact = feeds["x"] @ stored["w"]
    return qrun.load(model.SerializeToString()), feeds, {"m": exact + np.array([[0, 0], [change, 0]], f32)}


def test_a_step_that_noise_within_the_tolerance_makes_is_named_after_it() -> None:
    model, feeds, changes = summed(1e-7)
    found = compare_runtimes(QrunSide(model), Changed(model, changes), feeds, Tolerance(0, 1e-3, 1e-7, NOISE))
    assert told(found) == {"m": (False, None), "q": (True, None), "d": (True, None)}
    origin = found.origin
    assert origin is not None
    assert (origin.name, origin.pair.equal, origin.inputs) == ("m", True, True)
    assert origin.guilt is not None
    assert origin.guilt.reason.cause == "unknown-order"
    assert verdict(found).startswith(
        "differ: first at node 1 by 1 step, inherited from unknown-order at node 0; 2 of 3"
    )
    assert ("there", f"unknown-order: {origin.guilt.reason.text}") in first_facts(found, found.differing[0])
    fields = json.loads(document("compare", [], comparison_fields(found, Feeds(feeds))))
    assert fields["first"]["origin"]["by_itself"]["cause"] == "unknown-order"


def test_an_origin_is_looked_for_only_where_it_leads() -> None:
    """Beyond the tolerance it is the first difference itself; isolated, no node inherits."""
    model, feeds, changes = summed(0.2)
    found = compare_runtimes(QrunSide(model), Changed(model, changes), feeds, Tolerance(0, 1e-3, 1e-7, NOISE))
    assert (found.first and found.first.name, found.origin) == ("m", None)
    model, feeds, changes = summed(1e-7)
    within = Tolerance(0, 1e-3, 1e-7, NOISE)
    isolated = compare_runtimes(QrunSide(model), Changed(model, changes), feeds, within, isolate=True)
    assert isolated.equal
    assert isolated.origin is None


def test_an_origin_lies_after_what_died_out() -> None:
    """x @ w -> m, with noise that rounding to q0 takes away;
    q1 rounds a tie up, within --lsb 1, and makes 4 steps of q2."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "s", "z"], ["q0"]),
        helper.make_node("DequantizeLinear", ["q0", "s", "z"], ["d0"]),
        helper.make_node("QuantizeLinear", ["d0", "two", "z"], ["q1"]),
        helper.make_node("DequantizeLinear", ["q1", "two", "z"], ["d1"]),
        helper.make_node("QuantizeLinear", ["d1", "half", "z"], ["q2"]),
    ]
    stored = {"w": np.array([[1, 2], [1, 2]], f32), "s": f32(1), "two": f32(2), "half": f32(0.5), "z": u8(0)}
    model = make_model(nodes, {"x": ["N", 2]}, {"q2": typed(TensorProto.UINT8, ["N", 2])}, stored, opset=13)
    loaded = qrun.load(model.SerializeToString())
    feeds = {"x": np.array([[1, 2], [3, 2.2]], f32)}
    noisy = np.asarray(QrunSide(loaded).run(feeds)["m"]).copy()
    noisy[1, 0] = np.nextafter(noisy[1, 0], f32(9))
    changes = {"m": noisy, "q1": np.array([[2, 3], [3, 5]], u8)}
    found = compare_runtimes(QrunSide(loaded), Changed(loaded, changes), feeds, Tolerance(1, 1e-3, 1e-7, NOISE))
    assert [t.name for t in found.tensors if t.pair.identical] == ["q0", "d0"]
    assert found.origin is not None
    assert found.origin.name == "q1"
    assert "inherited from tie-rounding at node 3; 1 of 6 tensors beyond lsb 1" in verdict(found)


def test_ties_are_no_matter_of_more_than_a_step() -> None:
    near, far = (compare(Changed(chain(), {"q": codes})).tensors[0].guilt for codes in (AWAY, AWAY + u8(3)))
    assert near is not None
    assert far is not None
    assert (near.reason.ties, far.reason.ties, far.reason.nearest) == (2, None, None)


def test_codes_are_measured_as_real_numbers() -> None:
    pair = compare(Changed(chain(), {"q": AWAY})).tensors[2].pair
    assert pair.difference.largest == 1
    assert pair.max_abs == 2
    got, want = (np.array(v, float) for v in ([0, 0, 2, 4, 6, 8], [0, 0, 4, 4, 6, 8]))
    assert pair.sqnr == pytest.approx(10 * np.log10((want**2).sum() / ((got - want) ** 2).sum()))


@pytest.mark.parametrize("against", [a for a in AGAINST if "ort" not in a and a != "onnx-ref"])
def test_sides_of_qrun(against: str) -> None:
    a, b = sides(chain(), against)
    found = compare_runtimes(a, b, FEEDS)
    assert found.equal
    assert found.names == (a.name, b.name)
    assert len({found.a, found.b}) == 2


def test_groups_of_a_fused_side_cover_what_they_replace() -> None:
    model = chain()
    units = QrunSide(model, fuse=True).units
    assert sorted({n.index for u in units for n in u.group}) == [0, 1, 2]
    assert all(set(u.gives) <= set(u.made) for u in units)


def test_a_group_tells_what_its_integer_operator_rounds() -> None:
    model = chain()
    unit = Unit(model.nodes[2], model.nodes[1:])
    codes = np.array([4, 5, 6, 7], u8)
    exact = NodeGroup(model, unit, "y", {**model.constants, "q": codes}).before_rounding()
    assert exact is None or np.allclose(exact, [4, 4.5, 5, 5.5])


def test_extract_asks_for_what_is_missing() -> None:
    model = chain()
    assert [v.name for v in extract(model, model.nodes[1:], {"q": AWAY}).inputs] == ["q"]
    with pytest.raises(KeyError, match="q"):
        extract(model, model.nodes[1:], {})


# Other runtimes


@needs_ort
def test_onnxruntime_as_written_and_as_users_run_it() -> None:
    proto, feeds = node_model("QuantizeLinear", [FEEDS["x"], f32(1), u8(4)], opset=13, outputs=(u8,), constants=(1, 2))
    data = proto.SerializeToString()
    labels = [Peer(qrun.load(data), "ort", data=data, optimize=o).label for o in (False, True)]
    assert [label.rsplit(" ", 1)[1] for label in labels] == ["off)", "on)"]
    side = PeerSide(qrun.load(data), "ort", data=data)
    assert side.run(feeds)["y0"].tolist() == [4, 5, 6, 7, 10, 11]  # type: ignore[union-attr]


@needs_ort
@pytest.mark.parametrize("kind", [md.int4, md.uint4, md.float8_e5m2, md.float8_e4m3fnuz, md.float8_e5m2fnuz])
def test_types_that_python_cannot_read_from_onnxruntime(kind: type) -> None:
    x = np.array([1, 3, 2], f32)
    proto, feeds = node_model("QuantizeLinear", [x, f32(1), np.array(0, kind)], outputs=(kind,), constants=(1, 2))
    data = proto.SerializeToString()
    y = Peer(qrun.load(data), "ort", data=data).execute(feeds).outputs["y0"]
    assert y.dtype == kind
    assert y.astype(f32).tolist() == [1, 3, 2]


@pytest.mark.parametrize("backend", ["onnx-ref", pytest.param("ort", marks=needs_ort)])
def test_a_node_alone(backend: str) -> None:
    data = make_model(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Add", ["a", "c"], ["y"], "add")],
        {"x": [2]},
        {"y": [2]},
        {"c": np.array([1, 2], f32)},
        opset=13,
    ).SerializeToString()
    model = qrun.load(data)
    values = {"a": np.array([5, 6], f32), "c": model.constants["c"]}
    assert Nodes(model, data).alone(model.nodes[1], values, backend)[0].tolist() == [6, 8]
    assert Nodes(model, data).names == {"a", "y"}


FUNCTION = """
<ir_version: 8, opset_import: ["" : 15, "my" : 1]>
main (float[3] x) => (float[3] y)
<float s = {0.5}, uint8 z = {3}>
{
    a = my.twice(x)
    q = QuantizeLinear(a, s, z)
    y = DequantizeLinear(q, s, z)
}
<domain: "my", opset_import: ["" : 15]>
twice (v) => (w)
{
    t = Add(v, v)
    w = Clip(t)
}
"""


@pytest.mark.parametrize(("backend", "names"), [("onnx-ref", 4), pytest.param("ort", 3, marks=needs_ort)])
def test_functions(backend: str, names: int) -> None:
    """onnx.reference 1.23.2 refuses DequantizeLinear-13, so every node runs alone, those inside the function too."""
    if backend == "onnx-ref" and onnx.__version__ != "1.23.2":
        pytest.skip(f"onnx is {onnx.__version__}; what it refuses is that of 1.23.2")
    data = onnx.parser.parse_model(FUNCTION).SerializeToString()
    model = qrun.load(data)
    found = compare_runtimes(QrunSide(model), PeerSide(model, backend, data=data), {"x": np.array([1, 2, 3], f32)})
    causes = told(found)
    assert len(causes) == names
    assert {n: c for n, c in causes.items() if c != (False, None)} == (
        {"y": (True, "refused")} if found.piecewise else {}
    )


# Values before rounding


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "want"),
    [
        ("QLinearAveragePool", [np.array([[[0, 1, 2, 4]]], u8), f32(1), u8(0), f32(2), u8(3)],
         {"kernel_shape": [2], "strides": [2]}, [[[3.25, 4.5]]]),
        ("QLinearAveragePool", [np.array([[[0], [1], [2], [4]]], u8), f32(1), u8(0), f32(2), u8(3)],
         {"kernel_shape": [2], "strides": [2], "channels_last": 1}, [[[3.25], [4.5]]]),
        ("QLinearGlobalAveragePool", [np.array([[[0, 1, 2, 4]]], u8), f32(1), u8(0), f32(2), u8(3)], {}, [[[3.875]]]),
        ("QLinearLeakyRelu", [np.array([0, 6], u8), f32(1), u8(2), f32(0.5), u8(3)], {"alpha": 0.5}, [1, 11]),
        ("QLinearSigmoid", [np.array([2], u8), f32(1), u8(2), f32(0.25), u8(3)], {}, [5]),
        ("QLinearSoftmax", [np.array([[9, 9, 9, 9]], u8), f32(1), u8(0), f32(0.125), u8(1)], {"opset": 13}, [[3, 3, 3, 3]]),
        ("QLinearConv", [np.full((1, 2, 2), 5, u8), f32(1), u8(1), np.array([[[3], [1]]], i8), f32(1), i8(0), f32(32), u8(7)],
         {"channels_last": 1}, [[[7.5], [7.5]]]),
        ("QLinearConcat", [f32(4), u8(1), np.array([2, 4], u8), f32(1), u8(0), np.array([5], u8), f32(3), u8(2)],
         {"axis": 0}, [1.5, 2, 3.25]),
        ("QLinearWhere", [np.array([True, False]), np.array([2, 2], u8), f32(1), u8(0), np.array([5], u8), f32(3), u8(2),
                          f32(4), u8(1)], {}, [1.5, 3.25]),
    ],
)  # fmt: skip
def test_before_rounding(op: str, inputs: list[np.ndarray], attributes: dict[str, object], want: object) -> None:
    proto, feeds = node_model(op, inputs, attributes, opset=17, domain="com.microsoft", outputs=(u8,))
    model = qrun.load(proto)
    exact = before_rounding(model.nodes[0], [feeds.get(n) for n in model.nodes[0].inputs])
    np.testing.assert_allclose(np.asarray(exact), want, rtol=1e-12)
    zero = float(inputs[1] if op == "QLinearConcat" else inputs[-1])
    rounded = np.rint(np.asarray(want) - zero) + zero
    np.testing.assert_array_equal(qrun.Session(model).run(feeds)["y0"], rounded)


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_inside_the_graph_that_onnxruntime_makes() -> None:
    """A difference starts where the tensors that both sides have say so, and is given the cause of that node alone."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"], "sigmoid"),
        helper.make_node("Transpose", ["s"], ["t"], "turn", perm=[1, 0]),
        helper.make_node("DynamicQuantizeLinear", ["t"], ["q", "scale", "zero"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "dequantize"),
    ]
    proto = make_model(nodes, {"x": [4, 50]}, {"y": [50, 4]})
    data = proto.SerializeToString()
    model = qrun.load(data)
    feeds = {"x": np.random.default_rng(9).uniform(-17, -14.5, (4, 50)).astype(np.float32)}
    side = PeerSide(model, "ort", data=data, optimize=True)
    found = compare_runtimes(QrunSide(model), side, feeds)
    assert {"s", "q", "y"} <= {t.name for t in found.tensors}
    causes = {t.name: t.guilt.reason.cause for t in found.tensors if t.guilt}
    assert set(causes.items()) <= {("s", "approximation")}, "seed 9"
    assert side.run(feeds).keys() >= {"s", "y"}
    assert list(side.alone(side.units[-1], {})) == []


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_without_the_same_outputs_nothing_inside_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_model(
        [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Erf", ["s"], ["y"])], {"x": [3]}, {"y": [3]}, {}
    ).SerializeToString()
    model, feeds = qrun.load(data), {"x": np.ones(3, np.float32)}
    side = PeerSide(model, "ort", data=data, optimize=True)
    assert set(side.run(feeds)) == {"s", "y"}
    inner = side._inner
    assert inner is not None
    true = inner.execute
    monkeypatch.setattr(inner, "execute", lambda fed: true({"x": fed["x"] * 2}))
    assert list(side.run(feeds)) == ["y"]
    assert [unit.gives for unit in side.units] == [("y",)]


f32 = np.float32
FIRST, SECOND = np.arange(6, dtype=f32).reshape(2, 3), np.ones(4, f32)
MODEL = qrun.load(
    onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
    chain (float[2,3] a, float[4] b, int64 at) => (seq(float) s, float[N] y)
    { s = SequenceConstruct(a, b) p = SequenceAt(s, at) flat = Flatten<axis = 0>(p) one = Constant<value = int64[1] {-1}>() y = Reshape(flat, one) }
    """).SerializeToString()
)  # fmt: skip
COMPOUND_FEEDS = {"a": FIRST, "b": SECOND, "at": np.array(1)}
WHOLE = sequence([FIRST, SECOND])
OTHERS = {
    "shape": (sequence([FIRST.T.reshape(3, 2), SECOND]), "[0] float32 [3,2]"),
    "split": (sequence([FIRST.reshape(-1)[:4], np.concatenate([FIRST.reshape(-1)[4:], SECOND])]), "[0] float32 [4]"),
    "count": (sequence([FIRST]), "sequence [1]"),
    "type": (sequence([FIRST, SECOND.astype(np.float64)]), "[1] float64 [4]"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_elements_of_another_form_differ(name: str) -> None:
    other, shown = OTHERS[name]
    assert not same(WHOLE, other)
    found = compare_runtimes(QrunSide(MODEL), Changed(MODEL, {"s": other}), COMPOUND_FEEDS, EXACT)
    first = found.first
    assert first is not None
    assert first.name == "s"
    assert first.pair.difference.form is not None
    assert shown in first.pair.difference.form[1]
    assert verdict(found).startswith("differ: first at node 0 (sequence [2]")


def test_elements_with_other_numbers_differ_and_whoever_reads_them_inherits() -> None:
    other = sequence([FIRST, SECOND + 1])
    assert not same(WHOLE, other)
    found = compare_runtimes(QrunSide(MODEL), Changed(MODEL, {"s": other}), COMPOUND_FEEDS, EXACT)
    differ = {name: differs for name, (differs, _) in told(found).items()}
    assert differ == {"s": True, "p": True, "flat": True, "one": False, "y": True}
    assert next(t for t in found.tensors if t.name == "p").inputs is False
    assert same(WHOLE, sequence([FIRST.copy(), SECOND.copy()]))


def test_maps_differ_in_keys_and_in_values() -> None:
    keys, values = np.array(["a", "b"], object), np.array([1, 2], f32)
    assert same(maps(keys, values), maps(keys.copy(), values.copy()))
    assert not same(maps(keys, values), maps(keys[::-1].copy(), values))
    assert not same(maps(keys, values), maps(keys, values + 1))
    assert not same(maps(keys, values), values)


def recorded(folder: Path, s: Array) -> RecordComparison:
    """A record of MODEL, and a run in which `s` is this."""
    made = QrunSide(MODEL).run(COMPOUND_FEEDS)
    tensors = {name: array for name, array in made.items() if array is not None}
    record(tensors, MODEL, COMPOUND_FEEDS, "qrun", folder)
    return compare_record({**tensors, "s": s}, MODEL, COMPOUND_FEEDS, folder, EXACT)


def test_a_record_has_the_elements(tmp_path: Path) -> None:
    found = recorded(tmp_path / "r", WHOLE)
    assert found.equal
    assert {"s[0]", "s[1]"} <= {t.now.name for t in found.tensors}
    assert all(t.inputs_equal for t in found.tensors)


@pytest.mark.parametrize(("name", "verdicts"), [("shape", ["form", "equal"]), ("split", ["form", "form"]), ("type", ["equal", "form"])])  # fmt: skip
def test_a_record_tells_elements_of_another_form(name: str, verdicts: list[str], tmp_path: Path) -> None:
    found = recorded(tmp_path / "r", OTHERS[name][0])
    by_name = {t.now.name: t for t in found.tensors}
    assert [by_name[f"s[{at}]"].verdict for at in (0, 1)] == verdicts
    assert not found.equal
    assert by_name["p"].inputs_equal is False


def test_a_record_tells_elements_that_are_gone(tmp_path: Path) -> None:
    found = recorded(tmp_path / "r", OTHERS["count"][0])
    assert (found.only_recorded, found.equal) == (("s[1]",), False)
    assert found.first is not None
    assert (found.first.now.name, found.first.verdict) == ("s", "form")
    assert next(t for t in found.tensors if t.now.name == "p").inputs_equal is False


def test_an_input_of_a_record_is_its_elements(tmp_path: Path) -> None:
    model = qrun.load(
        onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
    reader (seq(float[N]) s, int64 at) => (float[M] y) { y = SequenceAt(s, at) }""").SerializeToString()
    )
    feeds = {"s": sequence([SECOND, SECOND + 1]), "at": np.array(0)}
    made = {name: array for name, array in QrunSide(model).run(feeds).items() if array is not None}
    record(made, model, feeds, "qrun", tmp_path / "r")
    changed = {**feeds, "s": sequence([SECOND, SECOND + 2])}
    with pytest.raises(CallError, match=r"input 's\[1\]' differs from the recorded one"):
        compare_record(made, model, changed, tmp_path / "r", EXACT)


def test_outputs_of_two_models_are_their_elements() -> None:
    text = '<ir_version: 10, opset_import: ["" : 18]>\nm (float[2,3] a) => (seq(float) s) {{ {} s = SequenceConstruct(x, x) }}'
    plain, doubled, turned = (
        onnx.parser.parse_model(text.format(body))
        for body in ("x = Identity(a)", "x = Add(a, a)", "x = Transpose<perm = [1, 0]>(a)")
    )
    feeds = {"a": FIRST}
    assert qrun.compare(plain, plain, feeds=feeds).equal
    assert not qrun.compare(plain, doubled, feeds=feeds).equal
    with pytest.raises(CallError, match="another shape"):
        qrun.compare(plain, turned, feeds=feeds)
