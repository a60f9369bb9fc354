"""Where files go and come from, with odd names: links in circles, folders, pipes, full disks,
names a .npz cannot hold."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cli import call, deep_model, npy, process, save, value
from helpers.models import make_model, typed
from onnx import TensorProto, helper

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links, pipes and limits of POSIX")
FLOATS = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    save(deep_model(3), folder / "m.onnx")
    npy(folder / "x.npy", np.zeros((1, 3, 8, 8), np.uint8))


def named(folder: Path, *names: str) -> Path:
    """A model whose outputs have these names; the place of each is its value."""
    nodes = [helper.make_node("Identity", [f"c{place}"], [name]) for place, name in enumerate(names)]
    constants = {f"c{place}": np.full(2, place, np.float32) for place in range(len(names))}
    return save(make_model(nodes, [], {name: typed(FLOATS, [2]) for name in names}, constants), folder / "names.onnx")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["y\0a", "y\0b"], "it would become 'y'"),
        (["y\0"], "it would become 'y'"),
        (["y" * 70_000], "70004 bytes"),
        (["é" * 32_768], "65540 bytes"),
        (["y", "y.npy"], "numpy would read 'y' instead"),
    ],
)
def test_names_that_npz_cannot_hold_are_refused_before_the_run(folder: Path, names: list[str], words: str) -> None:
    named(folder, *names)
    ended = call("names.onnx", "-o", "out.npz", "--json")
    assert ended.code == 2, ended.err
    assert ended.json["error"]["code"] == "QR008"
    assert words in ended.err
    assert "-o DIR/" in ended.err
    assert not (folder / "out.npz").exists()
    assert call("names.onnx", "-o", "out/").code == 0
    tensors = [onnx.load_tensor(folder / "out" / f"output_{place}.pb") for place in range(len(names))]
    assert [tensor.name for tensor in tensors] == names
    assert [onnx.numpy_helper.to_array(tensor)[0] for tensor in tensors] == list(range(len(names)))


def test_other_odd_names_come_back_from_npz(folder: Path) -> None:
    names = [
        "/a/b", "../a", "a", "A", "a.npz", "b.npy", "a\\b", " ", "a\nb", "CON", "a:0", "é" * 32_765, "..", ".", "a//b",
        "\u202e", "\U0001f600", "e\u0301", "\u00e9",
    ]  # fmt: skip
    named(folder, *names)
    ended = call("names.onnx", "-o", "out.npz")
    assert ended.code == 0, ended.err
    with np.load(folder / "out.npz") as arrays:
        assert [arrays[name][0] for name in names] == list(range(len(names)))
    assert call("compare", "out.npz", "out.npz").code == 0


def circles(folder: Path) -> None:
    for name in ("loop.npz", "loop.json", "loop.onnx", "loop.npy", "loop.html", "loop"):
        (folder / name).symlink_to(name)


def test_no_file_is_written_to_a_circle_of_links(folder: Path) -> None:
    circles(folder)
    before = sorted(os.listdir(folder))
    for words in (
        ["m.onnx", "-o", "loop.npz"], ["m.onnx", "-o", "loop/"], ["m.onnx", "-o", "loop/a/"], ["m.onnx", "-o", "loop/y.npz"],
        ["m.onnx", "--trace", "loop.json"], ["profile", "m.onnx", "-n", "1", "--trace", "loop.json"],
        ["report", "m.onnx", "-n", "1", "-o", "loop.html"], ["check", "m.onnx", "-o", "sarif=loop.json"],
        ["compare", "m.onnx", "--record", "loop"],
    ):  # fmt: skip
        ended = call(*words)
        assert ended.code == 2, (words, ended.err)
        assert "QR008 cannot-write" in ended.err, words
        assert "symbolic links" in ended.err, words
        assert "remove the link" in ended.err, words
    assert sorted(os.listdir(folder)) == before


def test_no_file_is_read_from_a_circle_of_links(folder: Path) -> None:
    circles(folder)
    for words, code in (
        (["loop.onnx"], "QR004"), (["check", "loop.onnx"], "QR004"), (["inspect", "loop.onnx"], "QR004"),
        (["compare", "loop.onnx", "m.onnx"], "QR004"), (["compare", "m.onnx", "loop.onnx"], "QR004"),
        (["compare", "m.onnx", "loop"], "QR004"), (["compare", "loop.npz", "loop.npz"], "QR004"),
        (["m.onnx", "-i", "loop.npy"], "QR004"), (["m.onnx", "-i", "loop/"], "QR004"),
        (["report", "loop.json"], "QR004"), (["m.onnx", "--config", "loop"], "QR009"),
        (["check", "m.onnx", "--data", "loop"], "QR004"),
    ):  # fmt: skip
        ended = call(*words)
        assert ended.code == 2, (words, ended.err)
        assert code in ended.err, words
        assert "symbolic links" in ended.err, (words, ended.err)
        assert "did you mean" not in ended.err, (words, ended.err)
        assert "creates a record" not in ended.err, (words, ended.err)


def test_names_that_are_too_long(folder: Path) -> None:
    name = "n" * 300
    for words in (
        ["m.onnx", "-o", f"{name}.npz"], ["m.onnx", "-o", f"{name}/"], ["m.onnx", "--trace", name], ["m.onnx", "-i", f"image={name}"],
        ["report", "m.onnx", "-n", "1", "-o", name], ["check", "m.onnx", "-o", f"sarif={name}"],
        ["compare", "m.onnx", "--record", name], [f"{name}.onnx"], ["m.onnx", "-i", f"{name}.npy"],
        ["check", f"{name}.onnx"], ["m.onnx", "--config", name], ["check", "m.onnx", "--data", name],
        ["compare", "m.onnx", name], ["report", f"{name}.json"], ["m.onnx", "-i", f"{name}/"],
    ):  # fmt: skip
        ended = call(*words)
        assert ended.code == 2, (words, ended.err)
        assert "too long" in ended.err, (words, ended.err)


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True  # the limit would cut files of bytecode off, too, and later imports would fail
from qrun.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
sys.exit(main())
"""


def test_a_folder_is_written_whole_or_not_at_all(folder: Path) -> None:
    """A limit of the size of files stands for the full disk: the small outputs fit, the large one does not."""
    import subprocess
    import sys

    nodes = [helper.make_node("Identity", ["x"], [f"y{place}"]) for place in range(3)]
    nodes += [helper.make_node("Concat", ["x"] * 64, ["big"], axis=0)]
    outputs = [value(name, FLOATS, None) for name in ("y0", "y1", "y2", "big")]
    save(make_model(nodes, {"x": typed(FLOATS, [16])}, outputs), folder / "big.onnx")
    assert call("big.onnx", "--seed", "1", "-o", "out/").code == 0
    before = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    assert len(before) == 5
    for target in ("out/", "new/"):
        words = ["big.onnx", "--seed", "2", "-o", target, "--no-cache", "--backend", "reference"]
        done = subprocess.run([sys.executable, "-c", LIMITED, "2000", *words], capture_output=True, text=True)
        assert done.returncode == 2, done.stderr
        assert "QR008" in done.stderr
        assert "File too large" in done.stderr
    assert {path.name: path.read_bytes() for path in (folder / "out").iterdir()} == before
    assert not (folder / "new").exists()


def test_a_killed_recorder_is_in_nobodys_way(folder: Path) -> None:
    (folder / "golden" / ".qrun-new-0").mkdir(parents=True)
    (folder / "golden" / ".qrun-new-0" / "lock").touch()
    assert call("compare", "m.onnx", "-i", "x.npy", "--record", "golden").code == 0
    assert os.listdir(folder / "golden") == ["record.json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_device_is_told(folder: Path) -> None:
    for words in (["m.onnx", "--trace", "/dev/full"], ["check", "m.onnx", "-o", "json=/dev/full"],
                  ["report", "m.onnx", "-n", "1", "-o", "/dev/full"]):  # fmt: skip
        ended = call(*words)
        assert ended.code == 2, words
        assert "No space left" in ended.err
        assert "make room" in ended.err


def test_a_report_of_a_bug_is_whole_or_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qrun.cli._main import write_report

    monkeypatch.setattr("tempfile.gettempdir", lambda: str(folder / "tmp"))
    (folder / "tmp").mkdir()
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    first = Path(write_report(["m.onnx"], ValueError("odd \udc80")))
    assert "odd" in first.read_text()
    assert os.listdir(folder / "tmp") == [first.name]
    (folder / "tmp").chmod(0o500)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder / "tmp")
    second = Path(write_report(["m.onnx"], ValueError("odd")))
    assert second == Path(second.name)
    assert os.listdir(folder / "here") == [second.name]


def test_a_pipe_is_written_and_read(folder: Path) -> None:
    import subprocess

    os.mkfifo(folder / "t.json")
    with subprocess.Popen(["cat", folder / "t.json"], stdout=subprocess.PIPE) as reader:
        assert process("m.onnx", "-i", "x.npy", "--trace", "t.json", "-q", cwd=folder).code == 0
        assert reader.stdout is not None
        assert reader.stdout.read().startswith(b"[")
