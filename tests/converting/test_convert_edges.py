"""qrun convert at its edges: scales and sizes that float32 or onnxruntime hardly holds, names and files in the way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from converting.test_converting import DOUBLE, LIMITS, MODELS, all_codes, convert, group, written
from helpers.cli import call
from onnx import helper, numpy_helper, parser

import qrun
from qrun.arithmetics import FAMILIES
from qrun.converting.convert import ConversionOptions, Converter


def test_no_bound_is_claimed_where_float32_hardly_holds_the_scales(tmp_path: Path) -> None:
    """A bias scale of one digit; a dequantized tensor that is infinite, though products and results are ordinary."""
    digits = group(0.1178, 1.26e-44, 1.1e-44, 3, 800)
    infinite = group(2.0**125, 2.0**-120, 2.0**8, 1, 0)
    for model in (digits, infinite):
        made = convert(model, tmp_path, "qoperator")
        (found,) = made.conversion.groups
        trial = made.try_both({"x": all_codes(np.uint8)}, LIMITS)
        assert trial.groups[0].most > 2
        assert found.verdict.bound is None
        assert not convert(model, tmp_path, "qoperator", strict=True).conversion.groups


def test_a_softmax_errs_with_its_inputs(tmp_path: Path) -> None:
    """Exponentials err with the magnitude of their arguments, and old softmaxes sum over all later axes."""
    text = """
        <ir_version: 8, opset_import: ["" : OPSET]>
        g (uint8[2,3,500] x) => (uint8[2,3,500] y)
        <float s = {0.7}, float t = {0.0001}, uint8 q = {0}> {
            f = DequantizeLinear(x, s, q)
            p = Softmax<axis = 1>(f)
            y = QuantizeLinear(p, t, q)
        }
        """
    bounds = []
    for opset in ("11", "13"):
        (found,) = convert(parser.parse_model(text.replace("OPSET", opset)), tmp_path, "qoperator").conversion.groups
        bounds.append(found.verdict.bound or 0)
    assert bounds[0] > bounds[1] >= 1


def test_products_of_nothing(tmp_path: Path) -> None:
    """No output channels, or no terms, for which onnxruntime's QGemm writes nothing."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (uint8[2,K] x) => (uint8[2,M] y)
        <float s = {0.5}, uint8 q = {3}, int8[K,M] w = {}, int8[M] o = {ZEROS}, float[M] r = {ONES}> {
            xf = DequantizeLinear(x, s, q)
            wf = DequantizeLinear<axis = 1>(w, r, o)
            p = Gemm(xf, wf)
            y = QuantizeLinear(p, s, q)
        }
        """
    for k, m, zeros, ones in (("4", "0", "", ""), ("0", "2", "0, 0", "1.0, 1.0")):
        made = text.replace("K", k).replace("M", m).replace("ZEROS", zeros).replace("ONES", ones)
        (kept,) = convert(parser.parse_model(made), tmp_path, "qoperator").conversion.left
        assert kept.reason == "onnxruntime writes no result for a QGemm without products"
        product = parser.parse_model(made.replace("Gemm(", "MatMul("))
        for form in ("qoperator", "integer"):
            done = convert(product, tmp_path, form)
            assert len(done.conversion.groups) == 1
            assert not done.try_both({"x": np.zeros((2, int(k)), np.uint8)}, LIMITS).broken


def test_pools_that_onnxruntime_refuses_stay(tmp_path: Path) -> None:
    model = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (uint8[1,1,4] x) => (uint8[1,1,1] y) <float s = {1e-12}, float t = {1}, uint8 q = {0}> {
            f = DequantizeLinear(x, s, q)
            p = GlobalAveragePool(f)
            y = QuantizeLinear(p, t, q)
        }
        """
    )
    (kept,) = convert(model, tmp_path, "qoperator").conversion.left
    assert kept.reason == "onnxruntime has no QLinearGlobalAveragePool of scales whose quotient is 1e-12"


BRANCHES = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (uint8[2,4] x, bool c) => (uint8[2,2] y, float[2,2] z)
    <float s = {0.3}, uint8 q = {3}, int8[4,2] w = {1,2,3,4,5,6,7,8}, int8 o = {0}> {
        xf = DequantizeLinear(x, s, q)
        wf = DequantizeLinear(w, s, o)
        p = MatMul(xf, wf)
        y = QuantizeLinear(p, s, q)
        z = If (c) <then_branch = a () => (float[2,2] r) { y_sum = Cast<to = 1>(y) r = Neg(y_sum) },
                    else_branch = b () => (float[2,2] y_zero) { y_zero = Cast<to = 1>(y) }>
    }
    """


def test_new_names_are_those_of_no_branch(tmp_path: Path) -> None:
    new = written(convert(parser.parse_model(BRANCHES), tmp_path, "integer"), tmp_path)
    made = [name for node in new.graph.node for name in node.output] + [t.name for t in new.graph.initializer]
    assert not {"y_sum", "y_zero", "r"}.intersection(made)


def test_another_opset_changes_no_output(tmp_path: Path) -> None:
    """onnx's converter states shapes and loses functions."""
    model = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 13]> g (float[N] x) => (float[M] y) { y = Relu(x) }
        """
    )
    new = written(convert(model, tmp_path, "", opset=17), tmp_path)
    assert new.graph.output[0] == model.graph.output[0]
    model.functions.append(helper.make_function("own", "F", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], []))
    with pytest.raises(qrun.QrunError, match="functions"):
        convert(model, tmp_path, "", opset=17)


def test_a_file_converted_twice_has_one_function(tmp_path: Path) -> None:
    """The first time bit-equal groups alone; and no note stays on a tensor that is gone."""
    first = group(0.5, 0.25, 0.5, 77, 5)
    second = onnx.compose.add_prefix(group(1 / 90, 1 / 255, 1 / 3, 77, 5), "b_")
    model = onnx.compose.merge_models(first, second, io_map=[])
    model.graph.quantization_annotation.add(tensor_name="yf")
    family = FAMILIES["pot-even"]
    once = written(convert(model, tmp_path, "integer", family, strict=True), tmp_path)
    again = convert(once, tmp_path, "integer", family)
    assert len(again.conversion.groups) == 1
    twice = written(again, tmp_path)
    assert (len(twice.functions), len(twice.graph.quantization_annotation)) == (1, 0)
    assert not again.try_both({"x": all_codes(np.uint8), "b_x": all_codes(np.uint8)}, LIMITS).broken


def test_data_files_are_kept_or_replaced_with_their_model(tmp_path: Path) -> None:
    model = group(0.5, 0.25, 0.5, 77, 5)
    model.graph.initializer[-2].CopyFrom(numpy_helper.from_array(np.ones((2000, 1, 1), np.int8), "w"))
    model.graph.initializer[-1].CopyFrom(numpy_helper.from_array(np.zeros(2000, np.int32), "b"))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 2000
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="int.onnx.data", size_threshold=0)
    ended = call("convert", str(path), "-o", str(tmp_path / "int.onnx"), "--to", "qoperator")
    assert ended.code == 2
    assert "it is a file of the model's data" in ended.err
    made = Converter(str(path), ConversionOptions("qoperator", DOUBLE))
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(qrun.QrunError, match="it is a folder"):
        made.save(str(tmp_path / "folder.onnx"))
    assert not (tmp_path / "folder.onnx.data").exists()


def test_scales_of_rows_and_matrices_stay(tmp_path: Path) -> None:
    model = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (uint8[2,2] x) => (uint8[2,3] y, uint8[2,2,3] z)
        <float[2,1] a = {0.5, 0.25}, uint8[2,1] b = {3, 4}, float s = {0.5}, uint8 q = {3}, int8[2,3] w = {1,2,3,4,5,6},
         int8 o = {0}, int8[2,2,3] v = {1,2,3,4,5,6,7,8,9,1,2,3}, float[2,1,3] c = {1,2,3,4,5,6},
         int8[2,1,3] d = {0,0,0,0,0,0}> {
            y = QLinearMatMul(x, a, b, w, s, o, s, q)
            z = QLinearMatMul(x, s, q, v, c, d, s, q)
        }
        """
    )
    reason = "it has scales or zero points beside those of tensors and output channels"
    assert [each.reason for each in convert(model, tmp_path, "integer").conversion.left] == [reason] * 2
    for each in convert(model, tmp_path, "qdq").conversion.left:
        assert each.reason.endswith("are not one per place along an axis")


def test_each_reader_has_its_own_dequantize(tmp_path: Path) -> None:
    """Compilers that fuse only such groups, of which `qrun check` tells, take the QDQ form."""
    made = Converter(str(MODELS / "digits" / "qoperator" / "model.onnx"), ConversionOptions("qdq", DOUBLE))
    new = written(made, tmp_path)
    readers = Counter(name for node in new.graph.node for name in node.input)
    outputs = [node.output[0] for node in new.graph.node if node.op_type == "DequantizeLinear"]
    assert all(readers[name] == 1 for name in outputs if name not in {value.name for value in new.graph.output})


def test_what_stays_is_listed_with_a_true_reason(tmp_path: Path) -> None:
    """A Relu that no product takes in; and operators whose requantization is in floats beside integer-only ones."""
    model = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]> g (uint8[4] x) => (uint8[4] y)
        <float s = {0.1}, float t = {0.2}, uint8 q = {3}, uint8 r = {9}> {
            a = DequantizeLinear(x, s, q)
            b = Relu(a)
            y = QuantizeLinear(b, t, r)
        }
        """
    )
    (kept,) = convert(model, tmp_path, "qoperator").conversion.left
    assert kept.reason == "Relu alone has no integer form"
    for kind in ("qdq", "qoperator"):
        source = str(MODELS / "digits" / kind / "model.onnx")
        left = Converter(source, ConversionOptions("integer", DOUBLE)).conversion.left
        assert len(left) == 2
        assert {each.reason for each in left} == {"only Conv, MatMul and Gemm have this form"}


@pytest.mark.parametrize("outside", [False, True])
def test_large_weights_reach_the_new_file(tmp_path: Path, outside: bool) -> None:
    """They are written from where they were read to; small ones are part of the message."""
    rng, source, target = np.random.default_rng(6), tmp_path / "m.onnx", tmp_path / "n.onnx"
    stored = {
        "w": rng.integers(-128, 128, (96, 64), np.int8),
        "few": rng.integers(-128, 128, (64, 5), np.int8),
        "table": rng.standard_normal((5, 700)).astype(np.float32),
    }
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (uint8[2,96] x) => (uint8[2,64] a, uint8[2,5] b, float[2,700] c)
        <float s = {0.5}, uint8 q = {3}, int8 o = {0}> {
            xf = DequantizeLinear(x, s, q)
            wf = DequantizeLinear(w, s, o)
            p = MatMul(xf, wf)
            a = QuantizeLinear(p, s, q)
            af = DequantizeLinear(a, s, q)
            ff = DequantizeLinear(few, s, o)
            r = MatMul(af, ff)
            b = QuantizeLinear(r, s, q)
            bf = DequantizeLinear(b, s, q)
            c = MatMul(bf, table)
        }
        """
    model = parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in stored.items())
    onnx.save(model, source, save_as_external_data=outside, location="m.data", size_threshold=0)
    made = Converter(str(source), ConversionOptions("qoperator", DOUBLE))
    assert len(made.save(str(target))) == 1 + outside
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(target).graph.initializer}
    for name, array in stored.items():
        np.testing.assert_array_equal(found[name], array, name)
    onnx.checker.check_model(target, full_check=True)
    feeds = {"x": rng.integers(0, 256, (2, 96), np.uint8)}
    np.testing.assert_array_equal(*(qrun.Session(str(path)).run(["c"], feeds)[0] for path in (source, target)))


def test_scalars_stay_scalars(tmp_path: Path) -> None:
    """Exporters take the batch size with a Gather at a scalar index, which is the value of a Constant."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (uint8[2,3] x) => (int64[1] shape, uint8[2,3] y)
        <float s = {0.5}, float t = {0.25}, uint8 q = {3}, int64[1] rest = {-1}> {
            f = DequantizeLinear(x, s, q)
            r = Relu(f)
            y = QuantizeLinear(r, t, q)
            sizes = Shape(x)
            at = Constant<value = int64 {0}>()
            batch = Gather(sizes, at)
            axis = Constant<value = int64[1] {0}>()
            shape = Unsqueeze(batch, axis)
        }
        """
    made = written(convert(parser.parse_model(text), tmp_path, "qoperator"), tmp_path)
    dims = {tensor.name: list(tensor.dims) for tensor in made.graph.initializer}
    assert dims["at"] == []
    assert qrun.Session(made).run({"x": np.zeros((2, 3), np.uint8)})["shape"].tolist() == [2]
