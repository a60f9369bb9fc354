"""The last line of an error says what to type next, in the model's own names and sizes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
import pytest
from helpers.cli import call, conv_model, fixes, npy, save, sum_model
from helpers.models import make_model
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from qrun.io.sizes import TRIED

FLOAT = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    node = helper.make_node("Relu", ["images"], ["y"], name="act")
    save(make_model([node], {"images": ["N", 1, 8, 8]}, "y"), folder / "m.onnx")
    save(conv_model(), folder / "conv.onnx")
    npy(folder / "x.npy", np.zeros((8, 1, 8, 8), np.float32))


def given(spec: str, *more: str, model: str = "m.onnx", rule: str) -> list[str]:
    return fixes(call(model, "-i", spec, *more), 2, rule)


# Arrays


@pytest.mark.parametrize(
    ("shape", "fix"),
    [
        ((8, 8), "2 axes are missing: x[None, None] fits"),
        ((1, 3, 8, 8), "axis 1 of x must have size 1, not 3"),
        ((1, 1, 28, 28), "axes 2 and 3 of x must have size 8 and 8, not 28 and 28"),
        ((8, 8, 1), "the axes look HWC: np.transpose(x, (2, 0, 1))[None] fits"),
    ],
)
def test_shapes(folder: Path, shape: tuple[int, ...], fix: str) -> None:
    npy(folder / "wrong.npy", np.zeros(shape, np.float32))
    assert given("wrong.npy", rule="QR003") == [fix]


def test_pixels_for_an_integer_input(folder: Path) -> None:
    npy(folder / "pixels.npy", np.full((1, 3, 8, 8), 0.25, np.float32))
    npy(folder / "signed.npy", np.full((1, 3, 8, 8), -3, np.int8))
    scaled, quantized = given("pixels.npy", model="conv.onnx", rule="QR003")
    assert "np.rint(x * 255).astype(np.uint8)" in scaled
    assert "np.rint(x / scale) + zero_point" in quantized
    (shifted,) = given("signed.npy", model="conv.onnx", rule="QR003")
    assert "(x.astype(np.int16) + 128).astype(np.uint8)" in shifted


@pytest.mark.parametrize("shape", ["N=4", "images:4x1x8x8"])
def test_sizes_that_the_array_has_already(shape: str) -> None:
    assert given("x.npy", "--shape", shape, rule="QR003") == ["omit --shape: x.npy has the sizes [8,1,8,8]"]


def test_sizes_of_another_input(folder: Path) -> None:
    save(sum_model(("a", "b"), FLOAT, ("N",)), folder / "sum.onnx")
    npy(folder / "three.npy", np.zeros(3, np.float32))
    ended = call("sum.onnx", "-i", "a=[1,2]", "-i", "b=three.npy")
    assert fixes(ended, 2, "QR003") == ["axis 0 of x must have size 2, not 3"]


# --inputs


@pytest.mark.parametrize("spec", ["", "images="])
def test_an_input_without_a_file(spec: str) -> None:
    assert given(spec, rule="QR005") == ["-i images=FILE"]
    assert given("image=", rule="QR002") == ["did you mean -i images=FILE?"]


def test_a_folder_that_holds_vectors(folder: Path) -> None:
    data = folder / "m" / "test_data_set_0"
    data.mkdir(parents=True)
    assert given("m", rule="QR007") == ["name the file: -i x.npy"]
    npy(folder / "m" / "img.npy", np.zeros(1))
    assert given("m/", rule="QR007") == ["did you mean -i m/img.npy?"]
    (data / "input_0.pb").write_bytes(numpy_helper.from_array(np.zeros((1, 1, 8, 8), np.float32)).SerializeToString())
    assert given("m", rule="QR007") == ["did you mean -i m/test_data_set_0?"]
    assert call("m.onnx", "-i", "m/test_data_set_0").code == 0


@pytest.mark.parametrize(
    ("keys", "fix"),
    [
        (["images", "labels"], "omit the key labels: np.savez(path, images=...)"),
        (["foo"], "did you mean the key images? np.savez(path, images=...) writes it"),
        (["arr_0"], "did you mean the key images? np.savez(path, images=...) writes it"),
    ],
)
def test_keys(folder: Path, keys: list[str], fix: str) -> None:
    np.savez(folder / "keys.npz", **dict.fromkeys(keys, np.zeros((1, 1, 8, 8), np.float32)))
    assert given("keys.npz", rule="QR002") == [fix]


def test_keys_of_which_none_is_near(folder: Path) -> None:
    save(sum_model(("left", "right"), FLOAT, (2,)), folder / "sum.onnx")
    np.savez(folder / "keys.npz", foo=np.zeros(2, np.float32))
    assert given("keys.npz", model="sum.onnx", rule="QR002") == [
        "name the arrays after the inputs: np.savez(path, left=..., right=...)"
    ]
    save(sum_model(("input:0",), FLOAT, (2,)), folder / "odd.onnx")
    assert "np.savez(path, **{name: array})" in given("keys.npz", model="odd.onnx", rule="QR002")[0]


def test_one_array_of_many(folder: Path) -> None:
    """It does not point back to the form that fails on this file."""
    array = np.zeros((1, 1, 8, 8), np.float32)
    np.savez(folder / "extra.npz", images=array, labels=array)
    assert given("images=extra.npz", rule="QR007") == ["keep one array in it: np.savez(path, images=...)"]
    save(sum_model(("a", "b"), FLOAT, (2,)), folder / "sum.onnx")
    np.savez(folder / "both.npz", a=np.zeros(2, np.float32), b=np.zeros(2, np.float32))
    assert given("a=both.npz", model="sum.onnx", rule="QR007") == [
        "-i both.npz without a name gives each array to the input of its key"
    ]


def test_an_empty_archive(folder: Path) -> None:
    (folder / "empty.npz").write_bytes(b"")
    ended = call("m.onnx", "-i", "empty.npz")
    assert fixes(ended, 2, "QR007") == ["write it again with np.savez"]
    assert "expected an .npz file" in ended.err
    np.savez(folder / "none.npz")
    ended = call("m.onnx", "-i", "none.npz")
    assert fixes(ended, 2, "QR007") == ["np.savez(path, images=...)"]
    assert "no arrays" in ended.err


# --shape


@pytest.mark.parametrize(
    ("shape", "rule", "fix"),
    [
        ("images:1x1x8", "QR003", "--shape images:1x1x8x8 for one input, or --shape N=1 for a named dimension"),
        ("H=8,W=8", "QR005", "--shape images:1x1x8x8 for one input, or --shape N=1 for a named dimension"),
        ("imges:2x1x8x8", "QR005", "did you mean --shape images:2x1x8x8?"),
        ("images:1x1xHx8", "QR005", "such as --shape images:1x1x8x8"),
        ("N=many", "QR005", TRIED),
    ],
)
def test_shape_options(shape: str, rule: str, fix: str) -> None:
    assert fixes(call("m.onnx", "--shape", shape), 2, rule) == [fix]


def test_shape_options_of_other_models(folder: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    save(make_model([node], {"x": ["H", "W"]}, "y"), folder / "two.onnx")
    assert fixes(call("two.onnx", "--shape", "H=8,W=9"), 2, "QR005") == ["did you mean --shape H=8 --shape W=9?"]
    save(make_model([node], {"x": [2, 2]}, "y"), folder / "fixed.onnx")
    (fix,) = fixes(call("fixed.onnx", "--shape", "N=2"), 2, "QR005")
    assert fix == "omit --shape: every size of the inputs is fixed"


# Models


def test_folders_for_models(folder: Path) -> None:
    for place in ("deep/one", "deep/two", "single", "none"):
        (folder / place).mkdir(parents=True)
    for place in ("deep/one/a.onnx", "deep/two/b.onnx", "single/model.onnx"):
        save(conv_model(), folder / place)
    for command in ("run", "inspect"):
        assert fixes(call(command, "single"), 2, "QR004") == ["did you mean single/model.onnx?"]
    assert fixes(call("./deep"), 2, "QR004") == [
        "name one: deep/one/a.onnx, deep/two/b.onnx",
        "or all: qrun check deep",
    ]
    assert fixes(call("./none"), 2, "QR004") == ["name a model; the folder has no .onnx file"]


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("cnov.onnx", "did you mean conv.onnx?"),
        ("zzzzzz.onnx", "models in the current folder: conv.onnx, m.onnx"),
        ("sub/q.onnx", "models in sub: other.onnx"),
        ("nope/", "models in the current folder: conv.onnx, m.onnx"),
        ("sbu/other.onnx", "did you mean sub/other.onnx?"),
        ("sbu/lost.onnx", "did you mean sub/other.onnx?"),
        ("quite/elsewhere.onnx", "check the path: the current folder has no quite"),
        ("bare/elsewhere.onnx", "check the path: bare has no elsewhere.onnx"),
    ],
)
@pytest.mark.parametrize("command", ["run", "check"])
def test_paths_without_a_model(folder: Path, command: str, path: str, fix: str) -> None:
    (folder / "sub").mkdir()
    (folder / "bare").mkdir()
    save(conv_model(), folder / "sub" / "other.onnx")
    assert fixes(call(command, path), 2, "QR004") == [fix]


def test_opsets(folder: Path) -> None:
    model = conv_model()
    model.opset_import[0].version = 99
    save(model, folder / "new.onnx")
    assert fixes(call("new.onnx"), 4, "QR106") == ["export the model again for opset 28 or lower"]


def test_an_operator_of_an_old_opset(folder: Path) -> None:
    """Conv-1 lasted until opset 10 and runs; Add-6 ended with opset 6."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Add", ["c", "c"], ["y"])]
    w = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w")
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 2, 2]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "g", info[:1], info[1:], [w]), opset_imports=[helper.make_opsetid("", 6)], ir_version=4
    )
    save(model, folder / "old.onnx")
    told = fixes(call("old.onnx", "--random"), 4, "QR201")
    assert "onnx.version_converter.convert_version(model, 21) rewrites most older models" in told
    converted = onnx.version_converter.convert_version(model, 21)
    save(converted, folder / "newer.onnx")
    assert call("newer.onnx", "--random").code == 0, "what it says helps"
    del model.graph.node[1]
    model.graph.node[0].output[0] = "y"
    save(model, folder / "conv.onnx")
    assert call("conv.onnx", "--random").code == 0


def test_run_and_check_label_alike(folder: Path) -> None:
    model = conv_model()
    external_data_helper.convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, folder / "ext.onnx")
    whole = (folder / "conv.onnx").read_bytes()
    (folder / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    (folder / "lfs.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 24536891\n")
    for name in ("ext.onnx", "cut.onnx", "lfs.onnx"):
        weights = folder / "weights.bin"
        for content in [b"", None] if name == "ext.onnx" else [None]:
            weights.unlink(missing_ok=True) if content is None else weights.write_bytes(content)
            ran, checked = call(name).err, call("check", name).out
            assert f"  --> {name}" in ran
            for label in ("expected", "got"):
                (line,) = [line for line in ran.splitlines() if line.startswith(f"   |  {label}")]
                assert line.split() in [other.split() for other in checked.splitlines()], (name, label)


# Limits and files to write


def test_memory(folder: Path) -> None:
    ended = call("m.onnx", "-i", "x.npy", "--max-memory", "1kB")
    assert fixes(ended, 5, "QR010") == ["--max-memory 2KiB is enough up to here, but later nodes may need more"]
    assert "  --> x.npy" in ended.err
    assert "at this node" not in ended.err
    ended = call("conv.onnx", "--max-memory", "1kB", "--backend", "reference")
    assert "  --> conv.onnx  node 0 /stem/conv (QLinearConv-10)" in ended.err
    enough = ""
    for _ in range(9):
        if ended.code == 0:
            break
        (fix,) = fixes(ended, 5, "QR010")
        assert fix.split()[1] != enough
        enough = fix.split()[1]
        ended = call("conv.onnx", "--max-memory", enough, "--backend", "reference")
    assert ended.code == 0, "each size gets further"
    (fix,) = fixes(call("m.onnx", "--shape", f"N={2**40}"), 5, "QR010")
    assert fix == "make it smaller: no machine has that much memory"


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a device of Linux")
def test_a_full_disk() -> None:
    ended = call("m.onnx", "-i", "x.npy", "--trace", "/dev/full")
    assert fixes(ended, 2, "QR008") == ["make room there, or write elsewhere"]
    assert fixes(call("m.onnx", "-i", "x.npy", "-o", "/dev/full"), 2, "QR005") == [
        "out.npz, out.npy (one output), out.json (Polygraphy), DIR/ or -"
    ]


@pytest.mark.parametrize(
    ("target", "fix"),
    [
        ("foo=check.x", "-o sarif=check.x, or another format before ="),
        ("srif=check.x", "did you mean -o sarif=check.x?"),
        ("check.x", "-o sarif=check.x names the format"),
    ],
)
def test_report_formats(target: str, fix: str) -> None:
    assert fixes(call("check", "m.onnx", "-o", target), 2, "QR005") == [fix]


# Names


def test_codes_are_not_guessed() -> None:
    assert fixes(call("check", "m.onnx", "--select", "QR999"), 2, "QR005") == ["qrun explain lists all codes"]
    assert fixes(call("explain", "QR9"), 2, "QR005") == ["qrun explain lists everything"]
    assert fixes(call("check", "m.onnx", "--select", "scale-shap"), 2, "QR005")[0].startswith(
        "did you mean scale-shape"
    )


def test_stored_tensors() -> None:
    assert fixes(call("inspect", "conv.onnx", "-t", "x_scael"), 2, "QR006")[0].startswith("did you mean x_scale")
    assert fixes(call("inspect", "conv.onnx", "-t", "zzz"), 2, "QR006") == [
        "qrun inspect conv.onnx -t '*' shows all of them"
    ]


def test_a_record_that_is_not_there() -> None:
    ended = call("compare", "m.onnx", "golden")
    assert fixes(ended, 2, "QR004") == ["qrun compare m.onnx --record golden creates a record"]


@pytest.mark.parametrize("shape", ["image:0x", "H=many", "foo=3"])
def test_no_sizes_are_made_up(folder: Path, shape: str) -> None:
    """Of an image of free sizes nobody knows which it takes: qrun finds some where --shape is left out."""
    nodes = [helper.make_node("Flatten", ["image"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["y"])]
    constants = {"w": np.ones((3 * 32 * 32, 4), np.float32)}
    save(make_model(nodes, {"image": ["N", 3, "H", "W"]}, "y", constants), folder / "image.onnx")
    assert fixes(call("image.onnx", "--shape", shape), 2, "QR005") == [TRIED]
    assert "H=32, W=32" in call("image.onnx").err
