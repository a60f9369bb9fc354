"""Values that are no tensors on two sides: a sequence is its elements, each with its type and shape;
a map its keys and values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from helpers.comparing import Changed, told

import qrun
from qrun.comparing.differences import EXACT, same
from qrun.comparing.records.compare import RecordComparison, compare_record
from qrun.comparing.records.record import record
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import QrunSide
from qrun.errors import CallError
from qrun.ir import Array
from qrun.ir.compound import maps, sequence
from qrun.report.compare import verdict

f32 = np.float32
FIRST, SECOND = np.arange(6, dtype=f32).reshape(2, 3), np.ones(4, f32)
MODEL = qrun.load(
    onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
    chain (float[2,3] a, float[4] b, int64 at) => (seq(float) s, float[N] y)
    { s = SequenceConstruct(a, b) p = SequenceAt(s, at) flat = Flatten<axis = 0>(p) one = Constant<value = int64[1] {-1}>() y = Reshape(flat, one) }
    """).SerializeToString()
)  # fmt: skip
FEEDS = {"a": FIRST, "b": SECOND, "at": np.array(1)}
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
    found = compare_runtimes(QrunSide(MODEL), Changed(MODEL, {"s": other}), FEEDS, EXACT)
    first = found.first
    assert first is not None
    assert first.name == "s"
    assert first.pair.difference.form is not None
    assert shown in first.pair.difference.form[1]
    assert verdict(found).startswith("differ: first at node 0 (sequence [2]")


def test_elements_with_other_numbers_differ_and_whoever_reads_them_inherits() -> None:
    other = sequence([FIRST, SECOND + 1])
    assert not same(WHOLE, other)
    found = compare_runtimes(QrunSide(MODEL), Changed(MODEL, {"s": other}), FEEDS, EXACT)
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
    made = QrunSide(MODEL).run(FEEDS)
    tensors = {name: array for name, array in made.items() if array is not None}
    record(tensors, MODEL, FEEDS, "qrun", folder)
    return compare_record({**tensors, "s": s}, MODEL, FEEDS, folder, EXACT)


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
    with pytest.raises(CallError, match=r"input 's\[1\]' is not the one that was recorded"):
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
