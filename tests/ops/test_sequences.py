"""Sequences, optional values and maps: against lists of Python, beside onnxruntime, as inputs, outputs and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.cli import call
from helpers.models import make_model, typed
from helpers.native import OBJECTS
from helpers.support import assert_equal, run_ort
from helpers.whole_values import LOOPED
from onnx import TensorProto, helper, numpy_helper

import qrun
from qrun.errors import MemoryLimitError, QrunError
from qrun.ir.compound import Compound, empty_optional, join_tensors, maps, sequence, tensors, to_runtime
from qrun.ops import Context, find

F, I64 = np.float32, np.int64
HEAD = '<ir_version: 10, opset_import: ["" : 18]>\n'
X = np.arange(6, dtype=F).reshape(2, 3)
PARTS = [X, X[:1] - 5, np.zeros((0, 3), F)]


def model(text: str, head: str = HEAD) -> onnx.ModelProto:
    made = onnx.parser.parse_model(head + text)
    onnx.checker.check_model(made)
    return made


def equal(got: Any, want: Any, message: str = "") -> None:
    """Values as `run` returns them."""
    if isinstance(want, list):
        assert isinstance(got, list), message
        assert len(got) == len(want), message
        for g, w in zip(got, want, strict=True):
            equal(g, w, message)
    elif isinstance(want, np.ndarray):
        assert_equal(got, want, message)
    else:
        assert got == want, message


def everywhere(made: onnx.ModelProto, feeds: dict[str, Any], beside: bool = True) -> list[Any]:
    """The outputs of both backends, several runs each, which are those of onnxruntime."""
    want = list(qrun.Session(made, backend="reference").run(feeds).values())
    session = qrun.Session(made, backend="native", cache=OBJECTS)
    for number in range(4):
        equal(list(session.run(feeds).values()), want, f"run {number}")
    if beside:
        equal(want, run_ort(made, feeds))
    return want


WORK = """main (seq(float[N,3]) s, float[2,3] x, int64 p) =>
    (seq(float[A,3]) inserted, seq(float[B,3]) appended, seq(float[C,3]) erased, seq(float[D,3]) shorter,
     float[E,3] at, int64 n, float[K,3] joined)
{
    inserted = SequenceInsert(s, x, p)
    appended = SequenceInsert(s, x)
    erased = SequenceErase(s, p)
    shorter = SequenceErase(s)
    at = SequenceAt(s, p)
    n = SequenceLength(s)
    joined = ConcatFromSequence<axis = 0>(s)
}"""


@pytest.mark.parametrize("place", [0, 1, 2, -1, -3])
def test_work_on_a_sequence(place: int) -> None:
    inserted, appended, erased, shorter, at, n, joined_ = everywhere(
        model(WORK), {"s": PARTS, "x": X, "p": np.array(place)}
    )
    want = list(PARTS)
    want.insert(place, X)
    equal(inserted, want)
    equal(appended, [*PARTS, X])
    want = list(PARTS)
    del want[place]
    equal(erased, want)
    equal(shorter, PARTS[:-1])
    equal(at, PARTS[place])
    assert n == 3
    equal(joined_, np.concatenate(PARTS))


MADE = """main (float[2,3] x, float[2,3] y) => (seq(float[2,3]) s, float[2,2,3] stacked, float[2,6] joined, seq(int64[M]) none, int64 n)
{
    z = Neg(y)
    s = SequenceConstruct(x, z)
    stacked = ConcatFromSequence<axis = -2, new_axis = 1>(s)
    joined = ConcatFromSequence<axis = 1>(s)
    none = SequenceEmpty<dtype = 7>()
    n = SequenceLength(none)
}"""


def test_sequences_that_are_made() -> None:
    y = X + 7
    s, stacked, joined_, none, n = everywhere(model(MADE), {"x": X, "y": y})
    equal(s, [X, -y])
    equal(stacked, np.stack([X, -y], 1))
    equal(joined_, np.concatenate([X, -y], 1))
    assert (none, n.tolist()) == ([], 0)


@pytest.mark.parametrize(
    ("split", "axis", "keep", "want"),
    [
        (None, 0, 1, [X[:1], X[1:]]),
        (None, 1, 0, [X[:, 0], X[:, 1], X[:, 2]]),
        (np.array(2), 1, 0, [X[:, :2], X[:, 2:]]),
        (np.array([1, 0, 2]), -1, 1, [X[:, :1], X[:, 1:1], X[:, 1:]]),
        (np.array(5, np.int32), 0, 1, [X]),
    ],
)
def test_split_to_sequence(split: Any, axis: int, keep: int, want: list[np.ndarray]) -> None:
    feeds = {"x": X}
    if split is not None:
        feeds["n"] = split
    node = helper.make_node("SplitToSequence", list(feeds), ["s"], axis=axis, keepdims=keep)
    made = make_model([node], feeds, {"s": helper.make_sequence_type_proto(typed(F))}, opset=18)
    beside = keep == 1  # onnxruntime fails without the axis where it is not the first
    equal(everywhere(made, feeds, beside)[0], want)


def test_sequences_that_go_around_a_loop() -> None:
    """In a program the elements lie in memory of the run, which later steps and runs use again."""
    session = qrun.Session(model(LOOPED), backend="native", cache=OBJECTS)
    kept = []
    for n in (3, 3, 3, 0, 2):
        feeds = {"x": X + n, "n": np.array(n)}
        s, y = everywhere(model(LOOPED), feeds)
        want = [np.abs(X + n) + F(i) for i in range(n)]
        equal([s, y], [want, np.concatenate([*want, np.abs(X + n)])])
        kept.append((session.run(feeds)["s"], want))
    for got, want in kept:
        equal(got, want)


def test_outputs_are_the_callers_own() -> None:
    made = model("main (seq(float[2]) s, float[2] x) => (seq(float[2]) t) { t = SequenceInsert(s, x) }")
    s, x = [np.ones(2, F)], np.zeros(2, F)
    session = qrun.Session(made)
    for _ in range(3):
        for element in session.run({"s": s, "x": x})["t"]:
            element += 5
        assert (s[0].tolist(), x.tolist()) == ([1, 1], [0, 0])


MAPPED = """main (seq(float[N]) s, seq(float[M]) t, float[1] x) => (seq(float[K]) y, seq(int64[R]) z)
{
    y, z = SequenceMap(s, t, x) <body = b (float[N] a, float[M] d, float[1] e) => (float[K] u, int64[R] v) {
        w = Concat<axis = 0>(a, d)
        u = Mul(w, e)
        v = Shape(u)
    }>
}"""


@pytest.mark.parametrize("count", [0, 1, 3])
def test_sequence_map(count: int) -> None:
    s, t = ([np.arange(n + k, dtype=F) for n in range(count)] for k in (1, 2))
    y, z = everywhere(model(MAPPED), {"s": s, "t": t, "x": F([2])})
    equal(y, [np.concatenate([a, b]) * F(2) for a, b in zip(s, t, strict=True)])
    equal(z, [np.array([a.size + b.size]) for a, b in zip(s, t, strict=True)])


CHOSEN = """main (optional(float[2,3]) o, float[2,3] x) => (bool has, float[2,3] y)
{
    has = OptionalHasElement(o)
    y = If(has) <
        then_branch = a () => (float[2,3] ay) { g = OptionalGetElement(o)  ay = Mul(g, x) },
        else_branch = b () => (float[2,3] by) { by = Neg(x) }
    >
}"""


def test_optional_values() -> None:
    made = model(CHOSEN)
    for value in (X + 2, None, X, None):
        has, y = everywhere(made, {"o": value, "x": X}, beside=False)
        assert has == (value is not None)
        equal(y, -X if value is None else value * X)
    empty = model(
        "main (float[2] x) => (bool h, bool a) { o = Optional(x)  h = OptionalHasElement(o)  a = OptionalHasElement() }"
    )
    assert [v.tolist() for v in everywhere(empty, {"x": F([1, 2])}, beside=False)] == [True, False]


def kernel(op_type: str, *inputs: Any, domain: str = "", version: int = 24, **attributes: Any) -> Any:
    definition = find(domain, op_type, version)
    assert definition is not None
    return definition.compute(inputs, attributes, Context())


def test_an_optional_that_is_none_has_a_type() -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [2]))
    nodes = [
        helper.make_node("Optional", [], ["o"], type=kind.optional_type.elem_type),
        helper.make_node("OptionalHasElement", ["o"], ["h"]),
    ]
    made = make_model(nodes, {}, {"o": kind, "h": typed(TensorProto.BOOL, [])}, opset=18)
    o, h = everywhere(made, {}, beside=False)
    assert (o, bool(h)) == (None, False)


@pytest.mark.parametrize(
    ("text", "code", "op_type", "inputs", "attributes"),
    [
        ("outside the sequence", "QR209", "SequenceAt", [sequence([X]), np.array(1)], {}),
        ("outside the sequence", "QR209", "SequenceAt", [sequence([X]), np.array(-2)], {}),
        ("outside the sequence", "QR209", "SequenceInsert", [sequence([X]), X, np.array(2)], {}),
        ("not one number", "QR208", "SequenceAt", [sequence([X]), np.array([0, 1])], {}),
        ("is not a sequence", "QR203", "SequenceLength", [X], {}),
        ("is not a sequence", "QR203", "SequenceAt", [empty_optional(), np.array(0)], {}),
        ("is not a tensor", "QR203", "SequenceInsert", [sequence([X]), sequence([X])], {}),
        ("the elements are float32", "QR203", "SequenceInsert", [sequence([X]), X.astype(I64)], {}),
        ("the elements are int64", "QR203", "SequenceInsert", [sequence([], np.dtype(I64)), X], {}),
        ("no element", "QR209", "SequenceErase", [sequence([], np.dtype(F))], {}),
        ("an input is missing", "QR205", "SequenceConstruct", [], {}),
        ("is not an element type", "QR204", "SequenceEmpty", [], {"dtype": 99}),
        ("no elements", "QR208", "ConcatFromSequence", [sequence([], np.dtype(F))], {"axis": 0}),
        ("does not fit the first", "QR208", "ConcatFromSequence", [sequence([X, X[:, :2]])], {"axis": 0}),
        ("does not fit the first", "QR208", "ConcatFromSequence", [sequence([X, X[:1]])], {"axis": 0, "new_axis": 1}),
        ("new_axis is 2", "QR204", "ConcatFromSequence", [sequence([X])], {"axis": 0, "new_axis": 2}),
        ("are empty", "QR208", "SplitToSequence", [X, np.array(0)], {}),
        ("do not fit", "QR208", "SplitToSequence", [X, np.array([1, 2])], {}),
        ("do not fit", "QR208", "SplitToSequence", [X, np.array([-1, 3])], {}),
        ("is not a list", "QR208", "SplitToSequence", [X, np.array([[1, 1]])], {}),
        ("no value", "QR202", "OptionalGetElement", [empty_optional()], {}),
        ("has no type", "QR204", "Optional", [], {}),
    ],
)
def test_refusals(text: str, code: str, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(QrunError, match=text) as caught:
        kernel(op_type, *inputs, **attributes)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (r"additional_inputs\[0\] is missing", 'y = SequenceMap(s, "")'),
        (r"additional_inputs\[0\] has another length", "e = SequenceEmpty()  y = SequenceMap(s, e)"),
        (r"inputs\[0\] is not a tensor", "y = SequenceConstruct(s)"),
    ],
)
def test_places_of_inputs_count_from_0(text: str, node: str) -> None:
    body = " <body = b (float e, float f) => (float o) { o = Add(e, f) }>" if "Map" in node else ""
    made = onnx.parser.parse_model(HEAD + f"main (seq(float) s) => (seq(float) y) {{ {node}{body} }}")
    with pytest.raises(QrunError, match=text):
        qrun.Session(made).run({"s": [F(1)]})


def test_tensors_and_sequences_do_not_pass_for_each_other() -> None:
    for text, feeds in (
        ("main (seq(float[2,3]) s) => (float[2,3] y) { y = Neg(s) }", {"s": [X]}),
        ("main (seq(float[2,3]) s) => (float[2,3] y) { y = Concat<axis = 0>(s) }", {"s": [X]}),
        ("main (float[2,3] x) => (int64 y) { y = SequenceLength(x) }", {"x": X}),
        ("main (seq(float[2,3]) s) => (float[2,3] y) { y = Identity(s) }", {"s": [X]}),
        ("main (float[2,3] x) => (seq(float[2,3]) y) { y = Identity(x) }", {"x": X}),
        ("main (float[2,3] x) => (seq(int64[2,3]) y) { y = SequenceConstruct(x) }", {"x": X}),
    ):
        for backend in ("reference", "native"):
            with pytest.raises(QrunError) as caught:
                qrun.Session(onnx.parser.parse_model(HEAD + text), backend=backend).run(feeds)
            assert caught.value.code == "QR203", text


def test_inputs_that_do_not_fit() -> None:
    made = model("main (seq(float[2,3]) s) => (int64 n) { n = SequenceLength(s) }")
    for wrong in (X, [X.astype(I64)], [X, X.astype(np.float64)], {"a": 1}, None):
        with pytest.raises(QrunError) as caught:
            qrun.Session(made).run({"s": wrong})
        assert caught.value.code == "QR003"
    assert qrun.Session(made).run({"s": []})["n"] == 0
    assert qrun.Session(made).run({"s": [[[1, 2, 3]], X]})["n"] == 2


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("seq(int64)", [element]) for element in (1.5, "3", None, 2**70, F(2.5), object())),
        *(("seq(uint8)", [element]) for element in (-1, 256, I64(-1))),
        *(("seq(float)", [element]) for element in ("3", "a", None, [1, "a"], [[1], [2, 3]])),
        ("seq(float)", [F(1), "a"]),
        ("seq(bool)", [2]),
        *(("seq(string)", [element]) for element in (1.5, None, b"a")),
        *(("map(int64, float)", row) for row in ({1.5: 2.0}, {1: "3"}, {1: None}, {(1, 2): 3.0}, {2**70: 1.0})),
        *(("map(string, int64)", row) for row in ({"a": 2.5}, {"a": "3"}, {1: 2}, {None: 2}, {("a", "b"): 3})),
    ],
)
def test_elements_do_not_become_others(kind: str, value: Any) -> None:
    made = model(f"main ({kind} s) => ({kind} y) {{ y = Identity(s) }}")
    with pytest.raises(QrunError) as caught:
        qrun.Session(made).run({"s": value})
    assert caught.value.code == "QR003"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("seq(int64)", [2.0, True]),
        ("seq(float)", [1, 2.5, True]),
        ("seq(string)", ["a", "b"]),
        ("map(int64, float)", {1: 2}),
    ],
)
def test_elements_that_are_the_same_in_another_type(kind: str, value: Any) -> None:
    made = model(f"main ({kind} s) => ({kind} y) {{ y = Identity(s) }}", HEAD)
    assert qrun.Session(made).run({"s": value})["y"] == value


def test_memory_is_counted_in_sequences() -> None:
    """A sequence that grows in a loop ends with QR010; what is held is released, once for a tensor in several."""
    growing = LOOPED.replace(
        "e = Add(w, f)",
        "k = Constant<value_ints = [1000, 3]>()  h = Add(w, f)\n m = ReduceMax<keepdims = 0>(h)  e = Expand(m, k)",
    )
    made = onnx.parser.parse_model(HEAD + growing.replace("float[2,3]", "float[P,3]"))
    for backend in ("reference", "native"):
        session = qrun.Session(made, backend=backend, max_memory=4 << 20)
        assert len(session.run({"x": X, "n": np.array(20)})["s"]) == 20
        with pytest.raises(MemoryLimitError):
            session.run({"x": X, "n": np.array(2000)})
    split = model("main (uint8[N] x) => (seq(uint8[M]) s) { s = SplitToSequence(x) }")
    with pytest.raises(MemoryLimitError):
        qrun.Session(split, max_memory=1 << 24).run({"x": np.zeros(1 << 20, np.uint8)})
    whole = X.repeat(100_000, 0)
    several = model(
        "main (float[N,3] x) => (int64 n) { s = SequenceConstruct(x, x, x)  t = SequenceInsert(s, x)  n = SequenceLength(t) }"
    )
    result = qrun.Session(several, backend="reference").execute({"x": whole})
    assert whole.nbytes <= result.peak_bytes < 2 * whole.nbytes


def test_joined_elements_are_asked_for_before_they_are_made() -> None:
    made = model("main (seq(float[N]) s) => (float[K] y) { y = ConcatFromSequence<axis = 0>(s) }")
    s = [np.ones(100_000, F)] * 2 + [np.ones(100_000, F)]
    needed = 2 * 400_000 + 3 * 400_000
    for backend in ("reference", "native"):
        with pytest.raises(MemoryLimitError):
            qrun.Session(made, backend=backend, max_memory=needed - 1000).run({"s": s})
        assert qrun.Session(made, backend=backend, max_memory=needed + 1000).run({"s": s})["y"].size == 300_000


def test_elements_of_many_axes() -> None:
    x = np.ones((2, *[1] * 63), F)
    s = kernel("SequenceConstruct", x, x)
    assert kernel("SequenceAt", s, np.array(-1)).shape == x.shape
    assert kernel("ConcatFromSequence", s, axis=63).shape == (2, *[1] * 62, 2)
    with pytest.raises(QrunError, match="65 axes"):
        kernel("ConcatFromSequence", s, axis=0, new_axis=1)
    parts = kernel("SplitToSequence", x, axis=0, keepdims=0).elements
    assert [part.shape for part in parts] == [(1,) * 63] * 2


def test_parts_and_wholes() -> None:
    values = {
        "a": sequence(PARTS),
        "b": sequence([], np.dtype(I64)),
        "c": empty_optional(),
        "d": maps(np.array([3, 4]), X[:, :2]),
    }
    found = tensors(values)
    assert list(found) == ["a[0]", "a[1]", "a[2]", "b[]", "d.keys", "d.values"]
    for name in "abd":
        again = join_tensors({key[1:]: value for key, value in found.items() if key.startswith(name)})
        assert isinstance(again, Compound)
        equal(to_runtime(again), to_runtime(values[name]))
    assert list(tensors({"a": sequence(PARTS[:1]), "a[0]": X, "a[0]'": X})) == ["a[0]''", "a[0]", "a[0]'"]
    assert join_tensors({"[0]": X, "[2]": X}) is None
    assert join_tensors({"[0]": X, "[1]": X.astype(I64)}) is None
    assert join_tensors({".keys": X, ".values": X}) is None
    assert to_runtime(values["d"]) == [{3: 0.0, 4: 1.0}, {3: 3.0, 4: 4.0}]


@pytest.mark.parametrize("form", ["npz", "folder", "json"])
def test_files(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run writes is what another one reads."""
    monkeypatch.chdir(tmp_path)
    text = """main (seq(float[N,3]) s, optional(float[2]) o, seq(int64[M]) e) =>
        (seq(float[N,3]) s2, optional(float[2]) o2, seq(int64[M]) e2) { s2 = Identity(s)  o2 = Identity(o)  e2 = Identity(e) }"""
    onnx.save(model(text), "m.onnx")
    given = ["-i", "s=[[[1,2,3]],[]]".replace("[]", "[[4,5,6],[7,8,9]]"), "-i", "o=null", "-i", "e=[]"]
    first = call("run", "m.onnx", *given, "--json")
    assert first.code == 0, first.err
    if form == "json":
        given = [word.replace("null", "[1, 2]") for word in given]
    elif form == "npz":
        np.savez("x.npz", **{"s[0]": F([[1, 2, 3]]), "s[1]": F([[4, 5, 6], [7, 8, 9]]), "e[]": np.zeros(0, I64)})
        given = ["-i", "x.npz", "-i", "o=null"]
    else:
        assert call("run", "m.onnx", *given, "-o", "d/").code == 0
        given = ["-i", "d"]
    again = call("run", "m.onnx", *given, "-o", "y.npz", "--json")
    assert again.code == 0, again.err
    shown = {row["name"]: row for row in again.json["outputs"]}
    assert list(shown) == ["s2[0]", "s2[1]", *(["o2"] if form == "json" else []), "e2[]"]
    assert shown["s2[1]"]["sha256"] == {row["name"]: row for row in first.json["outputs"]}["s2[1]"]["sha256"]
    with np.load("y.npz") as saved:
        assert_equal(saved["s2[1]"], F([[4, 5, 6], [7, 8, 9]]))
        assert saved["e2[]"].shape == (0,)
    if form == "folder":
        (tmp_path / "model").mkdir()
        (tmp_path / "d").rename(tmp_path / "model" / "test_data_set_0")
        (tmp_path / "m.onnx").rename(tmp_path / "model" / "model.onnx")
        passed = call("check", "model/model.onnx")
        assert (passed.code, "1 vector" in passed.out) == (0, True), passed.out
        (output,) = Path("model/test_data_set_0").glob("output_0.pb")
        output.write_bytes(output.read_bytes().replace(F(5).tobytes(), F(6).tobytes()))
        failed = call("check", "model/model.onnx")
        assert failed.code == 1
        assert "s2[1] differs" in failed.out


def test_damaged_files(tmp_path: Path) -> None:
    onnx.save(model("main (seq(float[N]) s) => (int64 n) { n = SequenceLength(s) }"), tmp_path / "m.onnx")
    (tmp_path / "s.pb").write_bytes(b"\xff\xff\xff")
    np.savez(tmp_path / "gap.npz", **{"s[0]": X[0], "s[2]": X[0]})
    np.savez(tmp_path / "types.npz", **{"s[0]": X[0], "s[1]": X[0].astype(I64)})
    proto = onnx.SequenceProto(elem_type=onnx.SequenceProto.SEQUENCE)
    (tmp_path / "deep.pb").write_bytes(proto.SerializeToString())
    (tmp_path / "tensor.pb").write_bytes(numpy_helper.from_array(X[0]).SerializeToString())
    for name in ("s.pb", "deep.pb", "tensor.pb", "gap.npz", "types.npz"):
        ended = call("run", tmp_path / "m.onnx", "-i", tmp_path / name)
        assert (ended.code, "QR007" in ended.err) == (2, True), f"{name}: {ended.err}"


@pytest.mark.parametrize(
    "command",
    [
        ["profile", "-n", "2"],
        ["compare", "--against", "reference"],
        ["compare", "--against", "ort"],
        ["compare", "--against", "ort", "--record", "kept"],
        ["report", "-o", "p.html"],
        ["check"],
        ["inspect", "--nodes"],
    ],
)
def test_commands(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(model(LOOPED), "m.onnx")
    given = ["-i", "x=[[1,2,3],[4,5,6]]", "-i", "n=3"] if command[0] not in ("check", "inspect") else []
    ended = call(command[0], "m.onnx", *given, *command[1:])
    assert ended.code == 0, ended.out + ended.err
    assert "Traceback" not in ended.err
