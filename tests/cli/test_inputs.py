"""Every form of --inputs, --shape and --random: what reaches the model, and what is refused with which words."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers.cli import Ended, call, conv_model, npy, npy_bytes, process, save, says, sum_model
from helpers.models import make_model, typed
from onnx import TensorProto, helper, numpy_helper

A, B = np.array([1, 2], np.float32), np.array([10, 20], np.float32)


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    save(sum_model(), folder / "sum.onnx")
    save(sum_model(["x"]), folder / "copy.onnx")
    npy(folder / "a.npy", A)
    npy(folder / "b.npy", B)
    np.savez(folder / "ab.npz", a=A, b=B)
    data = folder / "test_data_set_0"
    data.mkdir()
    for place, array in enumerate((A, B)):
        (data / f"input_{place}.pb").write_bytes(numpy_helper.from_array(array, "ab"[place]).SerializeToString())
    (folder / "a.pb").write_bytes(numpy_helper.from_array(A).SerializeToString())


def outputs(ended: Ended) -> list[object]:
    assert ended.code == 0, ended.err
    return ended.json["outputs"][0]["values"]


@pytest.mark.parametrize(
    "specs",
    [
        ["a.npy", "b.npy"],
        ["a=a.npy", "b=b.npy"],
        ["b=b.npy", "a.npy"],
        ["a.npy", "b=b.npy"],
        ["ab.npz"],
        ["a.npy", "b=[10, 20]"],
        ["a=[1,2]", "b=[10,20.0]"],
        ["test_data_set_0"],
        ["test_data_set_0/"],
        ["a.pb", "b.npy"],
        ["b=b.npy", "a=a.pb"],
    ],
)
def test_all_forms_give_the_same(specs: list[str]) -> None:
    words = [word for spec in specs for word in ("-i", spec)]
    assert outputs(call("sum.onnx", *words, "--json")) == [11, 22], specs


@pytest.mark.parametrize(
    ("stdin", "specs"),
    [
        (npy_bytes(A) + npy_bytes(B), ["-"]),
        (npy_bytes(A), ["a=-", "b=b.npy"]),
        (npy_bytes(B), ["a=a.npy", "-"]),
    ],
)
def test_stdin_npy(stdin: bytes, specs: list[str]) -> None:
    words = [word for spec in specs for word in ("-i", spec)]
    assert outputs(call("sum.onnx", *words, "--json", stdin=stdin)) == [11, 22]


def test_stdin_npz(folder: Path) -> None:
    assert outputs(call("sum.onnx", "-i", "-", "--json", stdin=(folder / "ab.npz").read_bytes())) == [11, 22]


def test_model_from_stdin(folder: Path) -> None:
    ended = call("-", "-i", "ab.npz", "--json", stdin=(folder / "sum.onnx").read_bytes())
    assert outputs(ended) == [11, 22]
    assert call("-", "-i", "-", stdin=b"").code == 2


@pytest.mark.parametrize(
    "name", ["input:0", "a=b", "[/a]", "a[0]", ":x:", "two words", "x" * 300, "\N{GRINNING FACE}", "a/b.c"]
)
def test_odd_names(folder: Path, name: str) -> None:
    save(sum_model([name, "other"]), folder / "odd.onnx")
    for spec in (f"{name}=a.npy", f"{name}=[1,2]"):
        ended = call("odd.onnx", "-i", spec, "-i", "other=b.npy", "--json")
        assert outputs(ended) == [11, 22], spec
    np.savez(folder / "odd.npz", **{name: A, "other": B})
    assert outputs(call("odd.onnx", "-i", "odd.npz", "--json")) == [11, 22]


def test_longest_name_wins(folder: Path) -> None:
    save(sum_model(["a", "a=b"]), folder / "odd.onnx")
    assert outputs(call("odd.onnx", "-i", "a=b=b.npy", "-i", "a=a.npy", "--json")) == [11, 22]


def test_inline_values(folder: Path) -> None:
    def run(number: int, text: str, shape: tuple[int, ...] = ()) -> Ended:
        save(sum_model(["x"], number, shape), folder / "one.onnx")
        return call("one.onnx", "-i", f"x={text}", "--json")

    assert outputs(run(TensorProto.INT64, "7")) == 7
    assert outputs(run(TensorProto.BOOL, "[true,false]", (2,))) == [True, False]
    assert outputs(run(TensorProto.UINT8, "[[0,255]]", (1, 2))) == [[0, 255]]
    assert outputs(run(TensorProto.FLOAT, "[NaN,Infinity,1]", (3,))) == ["nan", "inf", 1.0]
    assert outputs(run(TensorProto.FLOAT16, "0.5")) == 0.5
    assert outputs(run(TensorProto.INT64, "[]", (0,))) == []
    ended = run(TensorProto.INT64, "7")
    assert "7 read as int64" in ended.err
    for number, text, got in (
        (TensorProto.UINT8, "[256]", "256"),
        (TensorProto.INT8, "[1.5]", "1.5"),
        (TensorProto.INT8, "[true]", "not numbers"),
        (TensorProto.FLOAT, "[[1,2],[3]]", "different lengths"),
        (TensorProto.FLOAT, '["a"]', "not numbers"),
        (TensorProto.FLOAT, "[1e39]", "cannot hold"),
        (TensorProto.FLOAT16, "[70000]", "cannot hold"),
        (TensorProto.BOOL, "[1]", "true and false"),
        (TensorProto.INT64, "[[[1]]]", "[1,1,1]"),
    ):
        ended = run(number, text, (1,))
        assert ended.code == 2, text
        assert got in ended.err, (text, ended.err)
        assert ended.json["error"]["code"] == "QR003"
    assert run(TensorProto.FLOAT, "[" * 100_000, (1,)).code == 2


def test_random_when_nothing_is_given() -> None:
    first, second = call("sum.onnx", "--json"), call("sum.onnx", "--json", "--seed", "1")
    assert "random data, seed 0" in first.err
    assert first.json["inputs"][0]["source"] == "random, seed 0"
    assert first.json["outputs"] != second.json["outputs"]
    assert first.json["outputs"] == call("sum.onnx", "--json").json["outputs"]
    text = call("sum.onnx")
    assert "random, seed 0" in text.out


def test_some_inputs_are_not_enough() -> None:
    says(call("sum.onnx", "-i", "a=a.npy"), 2, "QR001 missing-input", "a (a.npy)", "-i b=FILE", "--random")
    ended = says(call("sum.onnx", "-i", "a=a.npy", "--random", "--json"), 0, "random data, seed 0, for b float32 [2]")
    all_random = call("sum.onnx", "--json").json["inputs"]
    assert all_random[1]["sha256"] == ended.json["inputs"][1]["sha256"], "a given input changed another's random data"


def test_random_ranges(folder: Path) -> None:
    from qrun.io.randoms import random_feeds
    from qrun.io.sizes import Sizes
    from qrun.ir.load import load
    from qrun.memory import Budget

    ranges = {
        TensorProto.FLOAT: (-1, 1), TensorProto.DOUBLE: (-1, 1), TensorProto.FLOAT16: (-1, 1), TensorProto.BFLOAT16: (-1, 1),
        TensorProto.FLOAT8E4M3FN: (-1, 1), TensorProto.UINT8: (0, 255), TensorProto.INT8: (-128, 127),
        TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15), TensorProto.INT2: (-2, 1), TensorProto.UINT2: (0, 3),
        TensorProto.INT64: (0, 1), TensorProto.INT16: (0, 1), TensorProto.UINT32: (0, 1), TensorProto.BOOL: (0, 1),
    }  # fmt: skip
    for number, (low, high) in ranges.items():
        model = load(sum_model(["x"], number, (4000,)))
        made = random_feeds(model, model.inputs, {}, Sizes(), 0, Budget()).arrays
        values = made["x"].astype(np.float64)
        assert made["x"].dtype == model.inputs[0].dtype
        assert low <= values.min() <= low + 0.01 * (high - low), number
        assert high - 0.01 * (high - low) <= values.max() <= high, number


def test_dynamic_sizes(folder: Path) -> None:
    save(conv_model(), folder / "conv.onnx")
    ended = call("conv.onnx", "--json")
    assert "N=1" in ended.err
    assert ended.json["symbols"] == {"N": 1}
    assert ended.json["outputs"][0]["shape"] == [1, 16, 8, 8]
    for spec in ("N=4", "image:4x3x8x8"):
        assert call("conv.onnx", "--shape", spec, "--json").json["outputs"][0]["shape"] == [4, 16, 8, 8]
    for spec, code in (("image:4x4x8x8", "QR003"), ("M=4", "QR005"), ("imag:1", "QR005"), ("N=x", "QR005"), ("N=-1", "QR005"),
                       ("image:", "QR003"), ("N=99999999999999999999", "QR005")):  # fmt: skip
        ended = call("conv.onnx", "--shape", spec, "--json")
        assert ended.code == 2, spec
        assert f"did you mean --shape {spec}" not in ended.err
        assert ended.json["error"]["code"] == code, spec
    assert "did you mean --shape image:1x3x8x8?" in call("conv.onnx", "--shape", "image=1x3x8x8").err
    assert "did you mean --shape image:1x3x8x8?" in call("conv.onnx", "--shape", "imgae:1x3x8x8").err
    assert "did you mean --shape N=4?" in call("conv.onnx", "--shape", "N:4").err
    assert "expected whole numbers from 0 to 2**40" in call("conv.onnx", "--shape", "N=-1").err
    assert call("conv.onnx", "--shape", "N=" + "9" * 5000).code == 2
    npy(folder / "x.npy", np.zeros((2, 3, 8, 8), np.uint8))
    says(call("conv.onnx", "-i", "x.npy", "--shape", "N=4"), 2, "N = 4 as in --shape")


def unnamed_model() -> onnx.ModelProto:
    """y = Conv(x [1,1,?]) with a kernel of 5."""
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    return make_model([node], {"x": (1, 1, None)}, "y", {"w": np.ones((1, 1, 5), np.float32)}, 22)


def test_dimensions_without_a_name(folder: Path) -> None:
    """They are called by their place, as the note calls them."""
    save(unnamed_model(), folder / "m.onnx")
    ended = call("m.onnx")
    assert "x[2]=16 (--shape changes that)" in ended.err
    assert ended.code == 0
    ended = call("m.onnx", "--shape", "x[2]=16", "--json")
    assert ended.json["outputs"][0]["shape"] == [1, 1, 12]
    assert ended.json["symbols"] == {"x[2]": 16}
    npy(folder / "x.npy", np.zeros((1, 1, 8), np.float32))
    says(call("m.onnx", "-i", "x.npy", "--shape", "x[2]=16"), 2, "x[2] = 16 as in --shape")
    for specs in (("x:1x1x8", "x[2]=16"), ("x[2]=16", "x:1x1x8")):
        assert "does not fit the model" in call("m.onnx", *[part for spec in specs for part in ("--shape", spec)]).err
    assert call("m.onnx", "--shape", "x:1x1x16", "--shape", "x[2]=16").code == 0
    ended = call("m.onnx", "--shape", "x[1]=16")
    assert "--shape x[1]=16 is neither INPUT:SIZES nor DIMENSION=SIZE of this model" in ended.err
    assert "inputs     x [1,1,?]" in ended.err
    assert "dimensions x[2]" in ended.err


def test_a_dimension_with_a_name_that_is_called_by_its_place(folder: Path) -> None:
    save(make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("N", None)}, "y"), folder / "m.onnx")
    assert "did you mean --shape N=5?" in call("m.onnx", "--shape", "x[0]=5").err
    assert "did you mean --shape N=5 --shape x[1]=3?" in call("m.onnx", "--shape", "x[0]=5,x[1]=3").err
    assert call("m.onnx", "--shape", "N=5", "--shape", "x[1]=3").code == 0
    assert "did you mean --shape x:5x3?" in call("m.onnx", "--shape", "x=5x3").err
    assert "omit --shape: qrun tries sizes" in call("m.onnx", "--shape", "x=5").err


def test_symbol_bound_by_a_given_input(folder: Path) -> None:
    save(sum_model(["a", "b"], TensorProto.FLOAT, ("N",)), folder / "n.onnx")
    ended = call("n.onnx", "-i", "a=a.npy", "--random", "--json")
    assert ended.json["inputs"][1]["shape"] == [2]
    npy(folder / "three.npy", np.zeros(3, np.float32))
    says(call("n.onnx", "-i", "a=a.npy", "-i", "b=three.npy"), 2, "with N = 2 as in a")


def test_huge_random_input_is_refused_first(folder: Path) -> None:
    save(sum_model(["x"], TensorProto.FLOAT, ("N",)), folder / "n.onnx")
    says(call("n.onnx", "--shape", "N=1099511627776"), 5, "QR010 memory-limit")
    assert call("n.onnx", "--shape", "N=1000000", "--max-memory", "1MB").code == 5


@pytest.mark.parametrize(
    ("specs", "code", "words"),
    [
        (["aa=a.npy"], "QR002", "did you mean -i a=a.npy"),
        (["zzz=a.npy"], "QR002", "inputs"),
        (["a.npy", "b.npy", "a.npy"], "QR002", "no input is left for a.npy"),
        (["a=a.npy", "a=b.npy"], "QR005", "given twice"),
        (["ab.npz", "a=b.npy"], "QR005", "given twice"),
        (["missing.npy"], "QR004", ".npy, .npz, .pb in the current folder: a.npy"),
        (["missing.dat"], "QR004", "check the path"),
        (["[1,2]"], "QR005", "did you mean -i 'a=[1,2]'"),
        (["a=[[1,2"], "QR005", "[[1,2 is incomplete JSON"),
        (["a=[1,,2]"], "QR005", "[1,,2] is not JSON"),
        (["a=b.nyp"], "QR004", "did you mean b.npy"),
        (["-", "a=-"], "QR005", "only one -"),
        (["a=ab.npz"], "QR007", "2 arrays"),
        (["photo.png"], "QR004", "check the path"),
        (["empty/"], "QR007", "input_0.pb"),
        (["a.txt"], "QR007", "a .npy file"),
    ],
)
def test_wrong_calls(folder: Path, specs: list[str], code: str, words: str) -> None:
    (folder / "empty").mkdir()
    (folder / "a.txt").write_text("1 2 3")
    ended = says(call("sum.onnx", *(w for s in specs for w in ("-i", s)), "--json", stdin=npy_bytes(A)), 2, words)
    assert ended.json["error"]["code"] == code


def test_npz_keys(folder: Path) -> None:
    np.savez(folder / "near.npz", images=A)
    save(sum_model(["image"]), folder / "one.onnx")
    says(call("one.onnx", "-i", "near.npz"), 2, "did you mean the key image")
    np.savez(folder / "unnamed.npz", A)
    assert "np.savez(path, image=...)" in call("one.onnx", "-i", "unnamed.npz").err


HEADER = b"\x93NUMPY\x01\x00"


def header(text: str, version: bytes = b"\x01\x00") -> bytes:
    size = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + size + text.encode()


def hostile() -> dict[str, bytes]:
    def claim(shape: str, descr: str = "'<f4'") -> bytes:
        return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n")

    return {
        "empty": b"",
        "magic only": b"\x93NUMPY",
        "no header": HEADER,
        "cut header": HEADER + b"\x76\x00{'descr'",
        "huge header": b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        "future version": b"\x93NUMPY\x09\x00" + b"\x00" * 20,
        "not a dict": header("[1, 2]"),
        "code": header("__import__('os').system('true')"),
        "deep": header("(" * 9000),
        "no shape": header("{'descr': '<f4'}"),
        "huge": claim(f"({2**40},)"),
        "huge product": claim(f"({2**40}, {2**40}, {2**40})"),
        "negative": claim("(-1,)"),
        "not ints": claim("('a',)"),
        "huge with zero": claim(f"(0, {2**62}, {2**62})"),
        "truncated": claim("(4,)") + b"\0" * 15,
        "trailing": claim("(1,)") + b"\0" * 9,
        "record": claim("(1,)", "[('a', '<f4')]") + b"\0" * 4,
        "record text": claim("(1,)", "'f4,f4'") + b"\0" * 8,
        "dates": claim("(1,)", "'<M8[s]'") + b"\0" * 8,
        "bytes": claim("(1,)", "'S4'") + b"\0" * 4,
        "no size": claim(f"({2**40},)", "'U0'"),
        "bad type": claim("(1,)", "'<q9'"),
        "pickle": claim("(1,)", "'|O'") + pickle.dumps(1),
        "raw pickle": pickle.dumps([1, 2]),
        "zip": b"PK\x03\x04" + b"\0" * 40,
    }


@pytest.mark.parametrize("name", hostile())
@pytest.mark.parametrize("way", ["file", "stdin"])
def test_hostile_npy(folder: Path, name: str, way: str) -> None:
    (folder / "bad.npy").write_bytes(hostile()[name])
    spec = "bad.npy" if way == "file" else "-"
    ended = call("copy.onnx", "-i", spec, "--json", stdin=hostile()[name])
    assert ended.code in (2, 5), ended.err
    assert ended.json["error"]["code"] in ("QR007", "QR010", "QR003"), name
    assert "Traceback" not in ended.err
    if name == "pickle":
        assert "pickled Python objects" in ended.err
        assert "never loads" in ended.err


def test_claims_are_checked_before_memory_is_taken(folder: Path) -> None:
    """A header may claim 8 GiB in a file of 100 bytes; under a small address space that must not matter."""
    (folder / "bad.npy").write_bytes(header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**31},), }}"))
    limited = "import resource as r; r.setrlimit(r.RLIMIT_AS, (3<<30, 3<<30)); from qrun.cli import main; import sys; sys.exit(main())"
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", limited, "copy.onnx", "-i", "bad.npy"], capture_output=True, text=True, timeout=60,
        env={"OPENBLAS_NUM_THREADS": "1", "PATH": ""}, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "cut off or damaged" in done.stderr


def test_hostile_npz(folder: Path) -> None:
    for name, data in hostile().items():
        with zipfile.ZipFile(folder / "bad.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", data)
        ended = call("copy.onnx", "-i", "bad.npz", "--json")
        assert ended.code in (2, 5) or name == "trailing", name
    with zipfile.ZipFile(folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "x.npy", header("{'descr': '|u1', 'fortran_order': False, 'shape': (50000000,), }") + b"\0" * 50_000_000
        )
    ended = call("copy.onnx", "-i", "bomb.npz", "--max-memory", "1MB")
    assert ended.code == 5
    good = (folder / "ab.npz").read_bytes()
    for cut in (10, len(good) // 2, len(good) - 5):
        (folder / "cut.npz").write_bytes(good[:cut])
        ended = call("sum.onnx", "-i", "cut.npz", "--json")
        assert ended.code == 2, cut
    broken = bytearray(good)
    broken[good.index(A.tobytes())] ^= 255
    (folder / "crc.npz").write_bytes(broken)
    assert call("sum.onnx", "-i", "crc.npz", "--json").json["error"]["code"] == "QR007"


def test_hostile_pb(folder: Path) -> None:
    tensor = numpy_helper.from_array(A)
    wrong = onnx.TensorProto()
    wrong.CopyFrom(tensor)
    wrong.dims[0] = 3
    outside = onnx.TensorProto(data_type=1, dims=[2], data_location=1)
    outside.external_data.add(key="location", value="../secret")
    for data in (b"", b"\xff" * 9, b"hello world", wrong.SerializeToString(), outside.SerializeToString(),
                 onnx.SequenceProto(name="s", elem_type=1).SerializeToString()):  # fmt: skip
        (folder / "bad.pb").write_bytes(data)
        ended = call("copy.onnx", "-i", "bad.pb", "--json")
        assert ended.code == 2, data
        assert ended.json["error"]["code"] == "QR007"


def test_layouts_of_npy(folder: Path) -> None:
    save(sum_model(["x"], TensorProto.FLOAT, (2, 3)), folder / "two.onnx")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for form in (np.asfortranarray(array), array.astype(">f4"), array[:, ::1]):
        npy(folder / "x.npy", form)
        assert outputs(call("two.onnx", "-i", "x.npy", "--json")) == array.tolist()
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=(3, 0))
    (folder / "x.npy").write_bytes(stream.getvalue())
    assert outputs(call("two.onnx", "-i", "x.npy", "--json")) == array.tolist()


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (ml_dtypes.int4, np.int8), (ml_dtypes.uint4, np.uint8), (ml_dtypes.int2, np.int8), (ml_dtypes.uint2, np.uint8),
        (ml_dtypes.bfloat16, np.uint16), (ml_dtypes.float8_e4m3fn, np.uint8), (ml_dtypes.float8_e5m2, np.uint8),
        (ml_dtypes.float4_e2m1fn, np.uint8),
    ],
)  # fmt: skip
def test_types_that_npy_cannot_hold(folder: Path, dtype: type, stored: type) -> None:
    """They go out as integers, said on stderr, come back from that form, and keep their type in .pb files."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    model = make_model([node], {"x": typed(number, (2,))}, {"y": typed(number)}, {"shape": np.array([2])}, 25)
    save(model, folder / "low.onnx")
    array = np.array([1, 0]).astype(dtype)
    (folder / "x.pb").write_bytes(numpy_helper.from_array(array, "x").SerializeToString())
    first = says(call("low.onnx", "-i", "x.pb", "-o", "y.npy", "--json"), 0, ".npy has no such type")
    assert np.load(folder / "y.npy").dtype == stored
    again = says(call("low.onnx", "-i", "y.npy", "-o", "out/", "--json"), 0, " read as ")
    assert again.json["outputs"] == first.json["outputs"]
    back = onnx.load_tensor(folder / "out" / "output_0.pb")
    assert back.data_type == number
    np.save(folder / "void.npy", array)
    assert call("low.onnx", "-i", "void.npy", "--json").json["outputs"] == first.json["outputs"]


def test_stdin_that_is_cut(folder: Path) -> None:
    ended = process("sum.onnx", "-i", "-", stdin=npy_bytes(A)[:-1], cwd=folder)
    assert ended.code == 2
    assert "cut off" in ended.err
