"""Two .npz files: planted differences are found at their places, and files that lie are refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qrun.comparing.differences import EXACT, Tolerance
from qrun.comparing.saved import SavedArrays, compare_npz
from qrun.errors import CallError, MemoryLimitError
from qrun.io.arrays import write_npy
from qrun.io.outputs import save, write_npz


def written(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def compared(
    folder: Path, a: dict[str, Any], b: dict[str, Any], tolerance: Tolerance = EXACT, **more: Any
) -> SavedArrays:
    return compare_npz(written(folder / "a.npz", **a), written(folder / "b.npz", **b), tolerance, **more)


def test_one_changed_element_is_found(tmp_path: Path) -> None:
    same = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    codes = np.full((2, 5, 5), 100, np.uint8)
    other = codes.copy()
    other[0, 3, 1], other[1, 2, 4] = 101, 90
    found = compared(tmp_path, {"same": same, "codes": codes}, {"codes": other, "same": same})
    assert not found.equal
    first, second = found.pairs
    assert first.name == "same"
    assert first.difference.equal
    assert first.sqnr == np.inf
    assert (second.name, second.a) == ("codes", "uint8 [2,5,5]")
    assert (second.difference.differing, second.difference.largest) == (2, 10)
    assert second.first is not None
    assert (second.first.index, second.first.a, second.first.b) == ((0, 3, 1), 100, 101)
    assert second.worst is not None
    assert (second.worst.index, second.worst.a, second.worst.b) == ((1, 2, 4), 100, 90)
    assert second.sqnr == pytest.approx(10 * np.log10(50 * 100**2 / (1 + 100)))


def test_tolerance(tmp_path: Path) -> None:
    a, b = (
        {"c": np.uint8([10, 20]), "f": np.float32([1, 1000])},
        {"c": np.uint8([11, 20]), "f": np.float32([1, 1000.5])},
    )
    assert not compared(tmp_path, a, b).equal
    assert compared(tmp_path, a, b, Tolerance(lsb=1)).equal
    assert not compared(tmp_path, a, b, Tolerance(lsb=0)).equal
    assert not compared(tmp_path, a, b, Tolerance(lsb=1, rtol=1e-4)).equal


def test_keys_and_forms(tmp_path: Path) -> None:
    found = compared(tmp_path, {"x": np.zeros(2), "y": np.zeros(3, np.uint8), "old": np.zeros(1)},
                     {"x": np.zeros((2, 1)), "y": np.zeros(3, np.int8), "new": np.zeros(1)})  # fmt: skip
    assert not found.equal
    assert (found.only_a, found.only_b) == (("old",), ("new",))
    assert [(p.a, p.b, p.first) for p in found.pairs] == [
        ("float64 [2]", "float64 [2,1]", None),
        ("uint8 [3]", "int8 [3]", None),
    ]
    alone = compared(tmp_path, {"x": np.zeros(2)}, {"x": np.zeros(2), "z": np.zeros(1)})
    assert not alone.equal


def test_nan_empty_scalar_text_and_bool(tmp_path: Path) -> None:
    arrays = {"nan": np.float32([np.nan, -np.inf, -0.0]), "empty": np.zeros((0, 3)), "scalar": np.float64(2),
              "text": np.array(["a", "b"]), "truth": np.array([True, False]), "z": np.complex64([1 + 2j])}  # fmt: skip
    assert compared(tmp_path, arrays, arrays).equal
    changed = {
        **arrays,
        "text": np.array(["a", "c"]),
        "truth": np.array([True, True]),
        "nan": np.float32([0, -np.inf, 0]),
    }
    found = {p.name: p for p in compared(tmp_path, arrays, changed).pairs if not p.difference.equal}
    assert set(found) == {"text", "truth", "nan"}
    assert found["nan"].first is not None
    assert found["nan"].first.index == (0,)
    assert found["text"].worst is not None
    assert (found["text"].worst.a, found["text"].worst.b) == ("b", "c")


EXOTIC = [
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.int4,
    ml_dtypes.uint4,
    ml_dtypes.int2,
]


@pytest.mark.parametrize("dtype", EXOTIC, ids=lambda t: t.__name__)
def test_types_that_npz_lacks(tmp_path: Path, dtype: Any) -> None:
    values = np.array([0, 1, -1, 1] if dtype is not ml_dtypes.uint4 else [0, 1, 9, 15]).astype(dtype)
    other = values.copy()
    other[2] = values[1]
    paths = [tmp_path / name for name in ("a.npz", "b.npz")]
    for path, array in zip(paths, (values, other), strict=True):
        save(str(path), {}, {"y": array})
    stored, found = compare_npz(*paths, EXACT), compare_npz(*paths, EXACT, types={"y": np.dtype(dtype)})
    assert stored.pairs[0].difference.differing == found.pairs[0].difference.differing == 1
    assert found.pairs[0].a.startswith(np.dtype(dtype).name.replace("_", "")), "as it was"
    assert found.pairs[0].first is not None
    assert (found.pairs[0].first.a, found.pairs[0].first.b) == (float(values[2]), float(values[1]))
    assert compare_npz(paths[0], paths[0], EXACT, types={"y": np.dtype(dtype)}).equal


def test_types_that_numpy_writes_without_a_name(tmp_path: Path) -> None:
    values = np.array([1, 2, 3], ml_dtypes.bfloat16)
    found = compared(tmp_path, {"y": values}, {"y": values[[0, 1, 1]]})
    assert found.pairs[0].a == "uint16 [3]"
    assert found.pairs[0].difference.differing == 1
    saved = tmp_path / "saved.npz"
    save(str(saved), {}, {"y": values})
    assert compare_npz(tmp_path / "a.npz", saved, EXACT).equal


def hostile() -> dict[str, tuple[bytes, str]]:
    def zipped(*members: tuple[str, bytes]) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, data in members:
                archive.writestr(name, data)
        return stream.getvalue()

    def npy(array: Any) -> bytes:
        stream = io.BytesIO()
        write_npy(stream, array)
        return stream.getvalue()

    pickled = io.BytesIO()
    np.savez(pickled, x=np.array([None, 1], dtype=object))
    whole = zipped(("x.npy", npy(np.arange(1000))))
    damaged = bytearray(whole)
    damaged[300] ^= 1
    huge = npy(np.zeros(4, np.float32)).replace(b"(4,), }" + b" " * 12, b"(4000000000000,), }")
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = zipped(("x.npy", npy(np.zeros(1))), ("x.npy", npy(np.ones(1))))
    return {
        "not a zip": (b"PK no zip at all", "not a zip"),
        "empty": (b"", "not a zip"),
        "npy": (npy(np.zeros(3)), "not a zip"),
        "pickled": (pickled.getvalue(), "pickled Python objects"),
        "truncated": (whole[: len(whole) // 2], "not a zip"),
        "damaged": (bytes(damaged), "CRC"),
        "huge": (zipped(("x.npy", huge)), "after the header"),
        "twice": (twice, "'x' twice"),
        "no npy": (zipped(("x.npy", b"hello")), "starts with"),
        "short": (zipped(("x.npy", npy(np.zeros(9))[:-8])), "after the header"),
    }


@pytest.mark.parametrize("case", ["not a zip", "empty", "npy", "pickled", "truncated", "damaged", "huge", "twice", "no npy", "short"])  # fmt: skip
@pytest.mark.parametrize("side", [0, 1])
def test_hostile(tmp_path: Path, case: str, side: int) -> None:
    data, said = hostile()[case]
    good = written(tmp_path / "good.npz", x=np.arange(1000))
    bad = tmp_path / "bad.npz"
    bad.write_bytes(data)
    with pytest.raises(CallError) as error:
        compare_npz(*((bad, good) if side == 0 else (good, bad)), EXACT)
    assert "bad.npz" in error.value.where[0]
    assert any(said in value for _, value in error.value.facts), error.value.facts


def test_missing_and_too_large(tmp_path: Path) -> None:
    good = written(tmp_path / "good.npz", x=np.zeros(10**5))
    with pytest.raises(CallError, match="cannot read") as error:
        compare_npz(good, tmp_path / "goood.npz", EXACT)
    assert "good.npz" in error.value.fixes[0]
    with pytest.raises(CallError, match="cannot read"):
        compare_npz(tmp_path, good, EXACT)
    with pytest.raises(MemoryLimitError):
        compare_npz(good, good, EXACT, max_memory=5 * 10**6)
    assert compare_npz(good, good, EXACT, max_memory=10**7).equal


def test_one_pair_at_a_time(tmp_path: Path) -> None:
    arrays = {f"x{n}": np.zeros(10**4) for n in range(50)}
    assert compared(tmp_path, arrays, arrays, max_memory=10**6).equal


def test_random_bytes(tmp_path: Path) -> None:
    """Whatever is changed in a file, it is compared or refused."""
    stream = io.BytesIO()
    write_npz(stream, {"x": np.arange(20, dtype=np.float32), "y": np.arange(4, dtype=np.uint8)})
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    good.write_bytes(stream.getvalue())
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    for _ in range(300):
        data = bytearray(stream.getvalue())
        for place in rng.integers(0, len(data), rng.integers(1, 6)):
            data[place] = rng.integers(256)
        bad.write_bytes(bytes(data))
        try:
            compare_npz(good, bad, EXACT)
        except (CallError, MemoryLimitError):
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
