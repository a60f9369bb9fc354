"""Readers of dumps: every form that devices and tools write gives the array that was written; hostile files, errors."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qrun.dumps import read_dump
from qrun.errors import CallError, MemoryLimitError
from qrun.memory import Budget

CODES = np.arange(-60, 60, dtype=np.int8).reshape(1, 5, 4, 6)


def npy(array: np.ndarray[Any, Any]) -> str:
    memory = io.BytesIO()
    np.save(memory, array)
    return base64.b64encode(memory.getvalue()).decode()


def results(*runs: tuple[str, int]) -> str:
    """What polygraphy run --save-outputs writes, for runners and their numbers of iterations."""
    array = {"values": {"array": npy(CODES), "polygraphy_class": "ndarray"}, "polygraphy_class": "LazyArray"}
    one = {"outputs": {"values": array, "c1": array}, "runtime": 0.1, "runner_name": "trt"}
    return json.dumps({"lst": [[name, [one] * count] for name, count in runs], "polygraphy_class": "RunResults"})


def only(path: Path) -> Any:
    (tensor,) = read_dump(path).tensors.values()
    return tensor


def test_arrays_of_numpy(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **{"a/b:0": CODES})
    assert list(read_dump(tmp_path / "d.npz").tensors) == ["a/b:0"]
    (tmp_path / "f" / "sub").mkdir(parents=True)
    np.save(tmp_path / "f" / "sub" / "c.npy", CODES)
    (tmp_path / "f" / "README.md").write_text("no tensor")
    found = read_dump(tmp_path / "f").tensors["sub/c"]
    assert found.typed
    assert found.shaped
    assert np.array_equal(found.data, CODES)


def test_results_of_snpe_have_neither_type_nor_shape(tmp_path: Path) -> None:
    folder = tmp_path / "output" / "Result_0"
    folder.mkdir(parents=True)
    (folder / "conv_1.raw").write_bytes(CODES.astype("<f4").tobytes())
    found = read_dump(tmp_path / "output").tensors["conv_1"]
    assert not found.typed
    assert not found.shaped
    assert any(np.array_equal(view, CODES.reshape(-1)) for view in found.views() if view.dtype == np.float32)
    (tmp_path / "output" / "Result_1").mkdir()
    with pytest.raises(CallError, match="the results of 2 inputs"):
        read_dump(tmp_path / "output")


@pytest.mark.parametrize("padding", [0, 4])
def test_traces_of_tidl_have_their_shape_in_the_name(tmp_path: Path, padding: int) -> None:
    rows = np.pad(CODES, [(0, 0)] * 3 + [(0, padding)])
    (tmp_path / "tidl_trace0012_00001_00005_00004x00006.y").write_bytes(rows.tobytes())
    found = only(tmp_path)
    assert found.shaped
    assert not found.typed
    assert any(np.array_equal(view, CODES) for view in found.views())


def test_the_float_file_beside_a_trace_is_the_same_tensor(tmp_path: Path) -> None:
    (tmp_path / "conv_int8.bin").write_bytes(CODES.tobytes())
    (tmp_path / "act_int8.bin").write_bytes(CODES.tobytes())
    (tmp_path / "act_int8_float.bin").write_bytes(CODES.astype("<f4").tobytes())
    assert list(read_dump(tmp_path).tensors) == ["act_int8", "conv_int8"]


def test_results_of_polygraphy(tmp_path: Path) -> None:
    (tmp_path / "o.json").write_text(results(("trt", 1)))
    found = read_dump(tmp_path / "o.json").tensors
    assert list(found) == ["values", "c1"]
    assert np.array_equal(found["c1"].data, CODES)


@pytest.mark.parametrize("runs", [[("trt", 2)], [("trt", 1), ("ort", 1)], []])
def test_results_of_several_runs_are_refused(tmp_path: Path, runs: list[tuple[str, int]]) -> None:
    (tmp_path / "o.json").write_text(results(*runs))
    with pytest.raises(CallError, match="not a valid dump"):
        read_dump(tmp_path / "o.json")


@pytest.mark.parametrize("several", [False, True])
def test_raw_files_with_their_description(tmp_path: Path, several: bool) -> None:
    record = {"name": "c/d", "dtype": "int8", "shape": [1, 5, 4, 6], "scale": 0.5, "zero_point": 3}
    if several:
        (tmp_path / "all.json").write_text(json.dumps({"tensors": [{**record, "file": "t0.bin"}]}))
        (tmp_path / "t0.bin").write_bytes(CODES.tobytes())
    else:
        (tmp_path / "c.json").write_text(json.dumps(record))
        (tmp_path / "c.raw").write_bytes(CODES.tobytes())
    found = only(tmp_path)
    assert (found.name, found.scale, found.zero_point) == ("c/d", 0.5, 3)
    assert np.array_equal(found.data, CODES)


def test_c_headers(tmp_path: Path) -> None:
    values = ", ".join(map(str, CODES.reshape(-1)))
    (tmp_path / "a.h").write_text(
        "#include <stdint.h>\n/* int8_t no[2] = {1, 2}; */\n#define N 120\n"
        f"const int8_t conv_out[N] = {{{values},}};\nstatic const float f[2] = {{1.5f, -2e3}}; // floats\n"
        "const int32_t bias[2][3] = {{1,2,3},{4,5,0x6}};\nextern int8_t buffer[10];\n"
    )
    found = read_dump(tmp_path).tensors
    assert list(found) == ["conv_out", "f", "bias"]
    assert np.array_equal(found["conv_out"].data, CODES.reshape(-1))
    assert found["bias"].data.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert found["f"].data.tolist() == [1.5, -2000.0]


def test_logs(tmp_path: Path) -> None:
    decimals = " ".join(map(str, CODES.reshape(-1)))
    (tmp_path / "serial.log").write_text(
        f"boot 1.2\nconv int8 [1,5,4,6]: {decimals}\nhex:\n0000: 0a ff\n0002: 10 11\ndone\nreal:\n 1.5, -2.5\n"
        "words: 0x0a 0xff\n"
    )
    found = read_dump(tmp_path / "serial.log").tensors
    assert np.array_equal(found["conv"].data, CODES)
    assert found["hex"].data.tolist() == [10, 255, 16, 17]
    assert not found["hex"].typed
    assert found["real"].data.tolist() == [1.5, -2.5]
    assert [view.tolist() for view in found["words"].views(np.dtype(np.int8))] == [[10, -1]]


HOSTILE: dict[str, tuple[str, bytes, str]] = {
    "trace, cut off": ("tidl_trace0001_00001_00008_00004x00004.y", bytes(100), "100 bytes, fewer than"),
    "trace, huge": ("tidl_trace0001_99999_99999_99999x99999.y", bytes(100), "fewer than"),
    "raw floats, cut off": ("a_float.bin", bytes(7), "no whole number of float32"),
    "npy, cut off": ("a.npy", base64.b64decode(npy(CODES))[:-5], "after the header"),
    "json, cut off": ("a.json", b'{"lst": [', "not a valid dump"),
    "json, deep": ("a.json", b"[" * 100_000, "not a valid dump"),
    "record, other size": ("a.json", b'{"name": "a", "dtype": "int8", "shape": [9], "file": "b.bin"}', "4 elements"),
    "record, huge": (
        "a.json",
        b'{"name": "a", "dtype": "int8", "shape": [4000000000, 4000000000], "file": "b.bin"}',
        "4 el",
    ),
    "record, no type": ("a.json", b'{"name": "a", "dtype": "object", "file": "b.bin"}', "dtype: int8"),
    "record, outside": ("a.json", b'{"name": "a", "file": "../../etc/passwd"}', "leads out of it"),
    "record, absolute": ("a.json", b'{"name": "a", "file": "/etc/passwd"}', "leads out of it"),
    "record, missing": ("a.json", b'{"name": "a", "file": "none.bin"}', "cannot read"),
    "record, bad scale": ("a.json", b'{"name": "a", "dtype": "int8", "scale": 1e400, "file": "b.bin"}', "scale"),
    "polygraphy, no array": ("a.json", results(("t", 1)).replace('"array": "', '"array": "!').encode(), "base64"),
    "header, too few": ("a.h", b"const int8_t a[9] = {1, 2};", "2 values of a"),
    "header, huge": ("a.h", b"const int8_t a[99999999999][99999999999] = {1};", "1 values of a"),
    "header, no numbers": ("a.h", b"const int8_t a[1] = {FOO};", "a: invalid literal"),
    "log, other size": ("a.txt", b"a int8 [3]: 1 2", "2 numbers of a"),
    "log, other type": ("a.txt", b"a uint8: 1 -2", "numbers from -2 to 1"),
    "not text": ("a.txt", b"\xff\xfe\x00", "is not text"),
    "nothing": ("a.txt", b"no numbers here", "holds no tensors"),
    "other": ("a.onnx", b"", "cannot read an array"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_give_errors(tmp_path: Path, case: str) -> None:
    name, content, told = HOSTILE[case]
    (tmp_path / "b.bin").write_bytes(bytes(4))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CallError) as caught:
        read_dump(tmp_path / name)
    assert told in f"{caught.value.message} {caught.value.facts}"


def test_two_tensors_of_one_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", CODES)
    (tmp_path / "a.raw").write_bytes(bytes(4))
    with pytest.raises(CallError, match="cannot read an array"):
        read_dump(tmp_path)


def test_large_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.raw").write_bytes(bytes(1000))
    with pytest.raises(MemoryLimitError):
        read_dump(tmp_path, Budget(500))


def test_a_missing_dump(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="cannot read"):
        read_dump(tmp_path / "none.npz")
