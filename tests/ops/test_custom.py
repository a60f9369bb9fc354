"""Custom operators: declared in files, in this process or by installed packages; hostile ones end in clear errors."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import Ended, call
from onnx import parser

import qrun
from qrun.ir.localfunctions import _LIBRARY
from qrun.ops._op import CUSTOM, REGISTRY, find
from qrun.ops._plugins import _LOADED

FILES = {
    "acme.py": """
import numpy as np
from qrun import op

@op("Clamp", domain="com.acme")
def clamp(x, *, most: int = 6):
    return np.minimum(np.maximum(x, 0), most).astype(x.dtype)
""",
    "bits.py": """
import numpy as np
from qrun import op

@op("Requant", domain="com.bits", types={"T": ("int32", "acc")})
def requant(acc, shift):
    return np.clip(acc >> shift, -128, 127).astype(np.int8)
""",
    "cut.py": """
import numpy as np
from qrun import op

@op("Split2", domain="com.cut")
def split2(x, *, axis: int = 0):
    return tuple(np.split(x, 2, axis))
""",
}
"""An operator of each of three vendors, in files of less than ten lines."""
OPS = ("--ops", "acme.py", "--ops", "bits.py", "--ops", "cut.py")
NETWORK = """
    <ir_version: 8, opset_import: ["" : 17, "com.acme" : 1, "com.bits" : 1, "com.cut" : 1]>
    g (float[2,4] x) => (float[2,2] y, int8[2,2] q)
    <float s = {0.5}, uint8 z = {7}, int32 shift = {1}> {
        a = com.acme.Clamp<most = 3>(x)
        b, c = com.cut.Split2<axis = 1>(a)
        u = QuantizeLinear(b, s, z)
        v = DequantizeLinear(u, s, z)
        y = Add(v, c)
        i = Cast<to = 6>(b)
        q = com.bits.Requant(i, shift)
    }
    """
X = np.array([[-1, 0.4, 2.6, 9], [1.25, 3.2, -5, 0.1]], np.float32)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Operators that a test declares do not outlive it."""
    yield
    for key, versions in [*REGISTRY.declared.items()]:
        if any(each.runner == CUSTOM for each in versions):
            del REGISTRY.declared[key]
    _LOADED.clear()
    _LIBRARY.clear()
    find.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the operators, a network of them and its inputs; the current one."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        assert len(text.strip().splitlines()) <= 10
        (tmp_path / name).write_text(text)
    onnx.save(parser.parse_model(NETWORK), "net.onnx")
    np.save("x.npy", X)
    return tmp_path


def expected() -> dict[str, Any]:
    """The outputs of NETWORK, in plain numpy."""
    a = np.clip(X, 0, 3)
    b, c = a[:, :2], a[:, 2:]
    v = (np.clip(np.rint(b / np.float32(0.5)) + 7, 0, 255) - 7) * np.float32(0.5)
    return {"y": v + c, "q": (b.astype(np.int32) >> 1).astype(np.int8)}


def ended(*arguments: str | Path, code: int = 0) -> Ended:
    found = call(*arguments)
    assert found.code == code, found.err or found.out
    return found


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_network_of_three_vendors(folder: Path, backend: str) -> None:
    """The first, second, third and fourth run, with other values and shapes between them."""
    call("check", "net.onnx", *OPS)
    session = qrun.Session("net.onnx", backend=backend)
    for _ in range(4):
        made = session.run({"x": X})
        for name, value in expected().items():
            assert made[name].dtype == value.dtype
            assert (made[name] == value).all()
        other = session.run({"x": X[::-1].copy()})
        assert (other["y"] == expected()["y"][::-1]).all()


def test_every_command_takes_them(folder: Path) -> None:
    """run, check, compare, profile, inspect, eval in two processes, report and ops."""
    run = ended("run", "net.onnx", "-i", "x.npy", *OPS, "-o", "out.npz").err
    assert "Traceback" not in run
    saved = np.load("out.npz")
    assert (saved["y"] == expected()["y"]).all()
    found = ended("profile", "net.onnx", "-i", "x.npy", "-n", "3", *OPS, "--json").json
    runners = {node["op"]: node["ran_by"] for node in found["nodes"]}
    assert runners["Clamp"] == runners["Requant"] == "numpy, yours"
    assert "nothing found" in ended("check", "net.onnx", *OPS).out
    ended("compare", "net.onnx", "-i", "x.npy", "--against", "reference", *OPS)
    ended("inspect", "net.onnx", "--nodes", *OPS)
    (folder / "xs").mkdir()
    for number in range(6):
        np.save(folder / "xs" / f"{number}.npy", X[number % 2])
    found = ended(
        *("eval", "net.onnx", "-i", "xs", "--against", "net.onnx"),
        *("--jobs", "2", *OPS, "--json", "--max-time", "60s"),
    ).json
    assert (found["samples"], found["failed"], found["workers"]) == (6, 0, 2)
    ended("report", "net.onnx", "-i", "x.npy", *OPS, "-o", "page.html")
    assert "com.acme::Clamp" in ended("ops", "clamp", *OPS).out


def test_without_them_the_error_says_what_to_type(folder: Path) -> None:
    error = ended("run", "net.onnx", "-i", "x.npy", code=4).err
    assert "QR201" in error
    assert "--ops FILE" in error


def test_results_are_not_kept_for_other_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code may change between two processes: nothing that it computed is read again."""
    monkeypatch.setenv("QRUN_CACHE_DIR", str(folder / "cache"))
    for shift, factor in (("np.minimum", 1), ("2 * np.minimum", 2)):
        (folder / "acme.py").write_text(FILES["acme.py"].replace("return np.minimum", f"return {shift}"))
        ended("run", "net.onnx", "-i", "x.npy", *OPS, "-o", "out.npz", "-t", "a")
        assert (np.load("out.npz")["a"] == factor * np.clip(X, 0, 3)).all()


def one(name: str, domain: str = "com.example", stated: str = "", call: str = "") -> onnx.ModelProto:
    """Relu, an operator of this name, Neg."""
    text = f"""
        <ir_version: 8, opset_import: ["" : 17, "{domain}" : 1]>
        g (float[2,3] x) => (float[2,3] y) {stated} {{
            a = Relu(x)
            b = {call or f"{domain}.{name}(a)"}
            y = Neg(b)
        }}
        """
    return parser.parse_model(text)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return {}['k']", ("raised KeyError", "got KeyError: 'k'", "ops.py, line 6")),
        ("raise SystemExit(3)", ("raised SystemExit",)),
        ("return None", ("returned no array", "got      None")),
        ("return 3.0", ("returned no array", "a value of type float")),
        ("return ()", ("returned too few arrays", "got      0")),
        ("x += 1\n    return x", ("read-only", "line 6: x += 1")),
        ("return x.astype(complex).astype('c32')", ("elements that ONNX lacks", "got      complex256")),
        ("return np.array([{}], object)", ("objects of type dict",)),
        ("return np.concatenate([x, x])", ("expected float32 [2,3], as the model states", "got      float32 [4,3]")),
        ("return x.astype(np.float64)", ("got      float64 [2,3]",)),
        ("return x.reshape(-1)", ("got      float32 [6]",)),
    ],
)
def test_hostile_functions_end_in_clear_errors(folder: Path, body: str, words: tuple[str, ...]) -> None:
    """Exit code 5, the node, and the line to correct; never a traceback. So do the second and third run."""
    (folder / "ops.py").write_text(
        f"import numpy as np\nfrom qrun import op\n\n@op('Bad', domain='com.example')\ndef bad(x):\n    {body}\n"
    )
    onnx.save(one("Bad", stated="<float[2,3] b>"), "bad.onnx")
    error = ended("run", "bad.onnx", "--random", "--ops", "ops.py", code=5).err
    assert "Traceback" not in error
    for word in (*words, "node 1 Bad_1", "QR210"):
        assert word in error, error
    session = qrun.Session("bad.onnx")
    for _ in range(3):
        with pytest.raises(qrun.RunError, match="Bad"):
            session.run({"x": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize("body", ["while True:\n        pass", "while True:\n        np.dot(x.T, x)"])
def test_a_function_without_an_end_is_stopped(folder: Path, body: str) -> None:
    (folder / "ops.py").write_text(
        f"import numpy as np\nfrom qrun import op\n\n@op('Endless', domain='com.example')\ndef endless(x):\n    {body}\n"
    )
    onnx.save(one("Endless"), "endless.onnx")
    error = ended("run", "endless.onnx", "--random", "--ops", "ops.py", "--max-time", "300ms", code=5).err
    assert "QR016" in error
    assert "node 1 Endless_1" in error


def test_time_that_suffices_leaves_no_interruption_behind() -> None:
    """A run that ends just before its time is not interrupted afterwards."""

    @qrun.op("Naps", domain="com.example")
    def naps(x: Any) -> Any:
        time.sleep(0.01)
        return x + 1

    session = qrun.Session(one("Naps"), max_time=0.0125)
    x, done = np.ones((2, 3), np.float32), 0
    for _ in range(40):
        with suppress(qrun.TimeLimitError):
            done += bool((session.run({"x": x})["y"] == -2).all())
    time.sleep(0.05)
    session.max_time = None
    assert (session.run({"x": x})["y"] == -2).all()


def test_results_are_the_runs_own() -> None:
    """A function may return its input, a view, a table that it keeps, or elements in another order of bytes."""
    table = np.full((2, 3), 5, np.float32)

    @qrun.op("Same", domain="com.example")
    def same(x: Any) -> Any:
        return x

    @qrun.op("Table", domain="com.example")
    def kept(x: Any) -> Any:
        table[:] += 1
        return table

    @qrun.op("Swapped", domain="com.example")
    def swapped(x: Any) -> Any:
        return np.asfortranarray(x + 1).astype(">f4")

    x = np.full((2, 3), 2, np.float32)
    for name, values in (("Same", (2, 2, 2)), ("Table", (6, 7, 8)), ("Swapped", (3, 3, 3))):
        session = qrun.Session(one(name))
        made = [session.run({"x": x}, ["b"])["b"] for _ in range(3)]
        assert [array.flat[0] for array in made] == list(values)
        assert all(array.dtype == np.float32 for array in made)


def test_shapes_that_follow_from_values() -> None:
    """Results of other shapes in later runs of one session."""

    @qrun.op("Positive", domain="com.example")
    def positive(x: Any) -> Any:
        return x[x > 0]

    model = one("Positive")
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = qrun.Session(model)
    for count in (1, 3, 0, 6, 2, 2, 5):
        x = np.array([1.5] * count + [-1] * (6 - count), np.float32).reshape(2, 3)
        assert session.run({"x": x})["y"].tolist() == [-1.5] * count


def test_constants_are_not_folded_and_calls_are_counted() -> None:
    """A run calls the function once for each node, and nothing else calls it."""
    calls = []

    @qrun.op("Counted", domain="com.example", types={"T": ("float", "x")})
    def counted(x: Any) -> Any:
        calls.append(1)
        return x * 2

    text = """
        <ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
        g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
            v = com.example.Counted(w)
            y = Add(x, v)
        }
        """
    session = qrun.Session(parser.parse_model(text))
    assert not calls
    list(qrun.check(parser.parse_model(text)))
    assert not calls
    for run in range(1, 4):
        assert session.run({"x": np.ones(2, np.float32)})["y"].tolist() == [3, 5]
        assert len(calls) == run


def test_types_and_attributes_are_checked() -> None:
    """As for qrun's own operators: the declaration is the schema."""

    @qrun.op("Scaled", domain="com.example", types={"T": ("int8 uint8", "x")})
    def scaled(x: Any, scale: Any = None, *, alpha: float, names: tuple[str, ...] = ("a",), mode="fast") -> Any:
        return (x * alpha).astype(np.float32)

    with pytest.raises(qrun.OperatorError, match="x is float32"):
        qrun.Session(one("Scaled", call="com.example.Scaled<alpha = 1.0>(a)")).run({"x": np.zeros((2, 3), np.float32)})
    with pytest.raises(qrun.OperatorError, match="'alpha' is missing"):
        qrun.Session(one("Scaled"))
    with pytest.raises(qrun.OperatorError, match="no attribute 'beta'"):
        qrun.Session(one("Scaled", call="com.example.Scaled<alpha = 1.0, beta = 2>(a)"))
    with pytest.raises(qrun.OperatorError, match="'mode' has the wrong type"):
        qrun.Session(one("Scaled", call="com.example.Scaled<alpha = 1.0, mode = 2>(a)"))
    assert scaled(np.ones(2, np.int8), alpha=2.0).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: qrun.op("Relu"), "qrun runs Relu itself"),
        (lambda: qrun.op("QLinearAdd", domain="com.microsoft"), "qrun runs com.microsoft::QLinearAdd itself"),
        (lambda: qrun.op("", domain="com.example"), "are texts"),
        (lambda: qrun.op("A", domain="com.example", since=0), "1 or more"),
        (lambda: qrun.op("A", domain="com.example", types={"T": ("float", "z")}), "no input z"),
        (lambda: qrun.op("A", domain="com.example", types={"T": ("float33", "x")}), "no type float33"),
        (lambda: qrun.op("A", domain="com.example", types={"T": "float"}), "types are"),
    ],
)
def test_declarations_that_cannot_be(declare: Any, words: str) -> None:
    with pytest.raises(qrun.CallError, match=words) as caught:
        declare()(lambda x: x)
    assert caught.value.code == "QR018"
    assert Path(__file__).name in caught.value.where[0]


@pytest.mark.parametrize("function", [lambda x, **more: x, lambda x, *, a=None: x, lambda x, *, a: x, 3])
def test_functions_that_declare_no_operator(function: Any) -> None:
    with pytest.raises(qrun.CallError):
        qrun.op("A", domain="com.example")(function)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "declares no operator"),
        ("from qrun import op\n1 / 0", "line 2"),
        ("def f(:", "line 1"),
        ("raise SystemExit", "SystemExit"),
        ("from qrun import op\n@op('Relu')\ndef relu(x): return x", "qrun runs Relu itself"),
        ("from qrun import op\n@op('A', domain='d')\ndef a(x, **k): return x", "neither an input nor an attribute"),
    ],
)
def test_files_that_cannot_be_loaded(folder: Path, text: str, words: str) -> None:
    (folder / "bad.py").write_text(text)
    error = ended("run", "net.onnx", "--random", "--ops", "bad.py", code=2).err
    assert "QR018" in error
    assert "bad.py" in error
    assert words in error, error
    assert "Traceback" not in error


def test_other_files(folder: Path) -> None:
    assert "no such file" in ended("run", "net.onnx", "--random", "--ops", "none.py", code=2).err
    assert "--functions net.onnx" in ended("run", "net.onnx", "--random", "--ops", "net.onnx", code=2).err
    assert "has no functions" in ended("run", "net.onnx", "--random", "--functions", "net.onnx", code=2).err


def test_settings_of_a_project_load_nothing(folder: Path) -> None:
    """A stranger may have written pyproject.toml."""
    for key, file in (("ops", "acme.py"), ("functions", "net.onnx")):
        (folder / "pyproject.toml").write_text(f"[tool.qrun]\n{key} = ['{file}']\n")
        error = ended("run", "net.onnx", "--random", code=2).err
        assert "QR009" in error
        assert "command line" in error


LIBRARY = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1] x) => (float[1] y) { y = Identity(x) }
    <domain: "com.acme", opset_import: ["" : 17, "com.acme" : 1]>
    Clamp <most> (x) => (y) {
        zero = Constant<value_float = 0.0>()
        top = Constant<value_float: float = @most>()
        a = com.acme.Lower(x, top)
        y = Max(a, zero)
    }
    <domain: "com.acme", opset_import: ["" : 17]>
    Lower (x, top) => (y) { y = Min(x, top) }
    """


def test_functions_define_operators_without_code(folder: Path) -> None:
    """The functions of a library, which call each other, stand for operators that the model does not define."""
    onnx.save(parser.parse_model(LIBRARY), "lib.onnx")
    onnx.save(one("Clamp", "com.acme", call="com.acme.Clamp<most = 3.0>(a)"), "clamp.onnx")
    np.save("x.npy", X[:, :3])
    for _ in range(2):  # the second run may read what the first one kept
        ended("run", "clamp.onnx", "-i", "x.npy", "--functions", "lib.onnx", "-o", "out.npz")
        assert (np.load("out.npz")["y"] == -np.clip(X[:, :3], 0, 3)).all()
    assert "nothing found" in ended("check", "clamp.onnx", "--functions", "lib.onnx").out
    relu = LIBRARY.replace("Lower", "Relu").replace(
        'domain: "com.acme", opset_import: ["" : 17]', 'domain: "", opset_import: ["" : 17]'
    )
    onnx.save(parser.parse_model(relu.replace("com.acme.Relu", "Relu")), "relu.onnx")
    assert "qrun runs Relu itself" in ended("run", "clamp.onnx", "--random", "--functions", "relu.onnx", code=2).err


def test_installed_packages_are_imported_when_a_model_needs_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point of the domain, and no other one."""
    (folder / "acme_ops.py").write_text(FILES["acme.py"])
    monkeypatch.syspath_prepend(str(folder))
    points = [
        metadata.EntryPoint("com.acme", "acme_ops", "qrun.ops"),
        metadata.EntryPoint("com.other", "never_imported", "qrun.ops"),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda **wanted: [p for p in points if p.name == wanted["name"]])
    session = qrun.Session(one("Clamp", "com.acme"))
    assert session.run({"x": np.full((2, 3), 9, np.float32)})["y"].tolist() == [[-6] * 3] * 2
    assert "acme_ops" in sys.modules
    monkeypatch.setattr(metadata, "entry_points", lambda **wanted: points[1:])
    with pytest.raises(qrun.CallError, match="never_imported"):
        qrun.Session(one("Thing", "com.other"))
