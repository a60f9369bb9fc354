"""``--image`` applies and prints what it states, and names a key that is missing; ``--cast`` converts element types."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call, fixes, npy, says
from onnx import TensorProto, helper

PIL = pytest.importorskip("PIL.Image")
FLOAT, UINT8, INT8 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8
NORMALIZED = "size=5x2 color=rgb scale=1/255 mean=0.485,0.456,0.406 std=0.229,0.224,0.225"


def model(path: Path, shape: list[Any], kind: int = FLOAT) -> None:
    """A model that returns its input, image."""
    ends = [helper.make_tensor_value_info(name, kind, shape) for name in ("image", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["image"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(autouse=True)
def files(folder: Path) -> np.ndarray:
    pixels = np.random.default_rng(7).integers(0, 256, (2, 5, 3), np.uint8)
    PIL.fromarray(pixels).save(folder / "a.png")
    model(folder / "m.onnx", [1, 3, 2, 5])
    return pixels


def made(*words: str, model: str = "m.onnx") -> np.ndarray:
    ended = call(model, *words, "-o", "y.npy")
    assert ended.code == 0, ended.err
    return np.load("y.npy")


def test_values_are_those_of_the_formula(files: np.ndarray) -> None:
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    want = ((files / 255 - mean) / std).astype(np.float32).transpose(2, 0, 1)[None]
    assert np.array_equal(made("-i", "a.png", "--image", NORMALIZED), want)
    bgr = made("-i", "a.png", "--image", NORMALIZED, "--image", "color=bgr", "mean=.0", "std=1")
    assert np.array_equal(bgr, (files[..., ::-1] / 255).astype(np.float32).transpose(2, 0, 1)[None])


def test_what_was_done_is_said(folder: Path) -> None:
    PIL.fromarray(np.full((6, 8, 3), 200, np.uint8)).save(folder / "big.jpg")
    ended = call("m.onnx", "-i", "image=big.jpg", "--image", *NORMALIZED.split(), "resize=bicubic")
    assert ended.code == 0, ended.err
    assert (
        "image float32 [1,3,2,5] from big.jpg: resized bicubic 8x6 -> 5x2, rgb, /255, mean 0.485 0.456 0.406, "
        "std 0.229 0.224 0.225, nchw" in ended.out
    )
    said = call("m.onnx", "-i", "a.png", "--image", "color=rgb", "scale=1", "--json").json["inputs"][0]["source"]
    assert said == "a.png: 5x2, rgb, pixels from 0 to 255, no mean, no std, nchw"


@pytest.mark.parametrize(("width", "height", "left", "top"), [(13, 9, 2, 1), (9, 13, 0, 2), (9, 9, 0, 1)])
def test_the_shorter_side_and_the_crop(width: int, height: int, left: int, top: int, folder: Path) -> None:
    """The pixels are those of torchvision's Resize(6) and CenterCrop((4, 5)): of a margin of 1.5 pixels, 2 are cut off
    at the left; of one of 0.5, none."""
    image = PIL.fromarray(np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8))
    image.save(folder / "a.png")
    resized = image.resize((width * 6 // min(width, height), height * 6 // min(width, height)), PIL.Resampling.BILINEAR)
    model(folder / "m.onnx", [1, 3, 4, 5])
    want = np.asarray(resized)[top : top + 4, left : left + 5].transpose(2, 0, 1)[None]
    words = "size=99 shorter=6 crop=5x4 color=rgb scale=1"
    assert np.array_equal(made("-i", "a.png", "--image", words), want)
    assert f"{resized.width}x{resized.height}, center 5x4, rgb" in call("m.onnx", "-i", "a.png", "--image", words).out


def test_a_crop_that_does_not_fit() -> None:
    """The image, 5x2, is smaller than the crop; the crop is not the input's size."""
    (fix,) = fixes(call("m.onnx", "-i", "a.png", "--image", "crop=5x3 color=rgb scale=1"), 2, "QR003")
    assert fix == "add --image shorter=5, or what training used"
    ended = call("m.onnx", "-i", "a.png", "--image", "crop=2 color=rgb scale=1")
    assert "--image color=rgb crop=2x2 does not fit input 'image'" in ended.err


@pytest.mark.parametrize(
    ("shape", "kind", "words", "axes"),
    [
        ([1, 2, 5, 3], FLOAT, "color=rgb scale=1", None),
        ([2, 5, 3], FLOAT, "color=rgb scale=1", None),
        ([3, 2, 5], FLOAT, "color=rgb scale=1", (2, 0, 1)),
        (["N", 3, "H", "W"], FLOAT, "color=rgb scale=1 layout=nchw", (2, 0, 1)),
        ([1, 3, 2, 5], UINT8, "color=rgb", (2, 0, 1)),
        ([1, 3, 2, 5], INT8, "color=rgb mean=128", (2, 0, 1)),
    ],
)
def test_layouts_and_types(
    shape: list[Any], kind: int, words: str, axes: tuple[int, ...] | None, files: np.ndarray, folder: Path
) -> None:
    model(folder / "m.onnx", shape, kind)
    got = made("-i", "a.png", "--image", words)
    want = files.astype(np.int64) - (128 if kind == INT8 else 0)
    assert np.array_equal(got.reshape(got.shape[-3:]), want.transpose(axes) if axes else want)


@pytest.mark.parametrize(
    ("shape", "kind", "words", "missing"),
    [
        ([1, 3, 2, 5], FLOAT, "", "color and scale"),
        ([1, 3, 2, 5], UINT8, "", "color"),
        ([1, 3, 8, 8], FLOAT, "color=rgb scale=1", "size"),
        (["N", 3, "H", "W"], FLOAT, "color=rgb scale=1", "layout"),
        ([1, "C", 2, 5], UINT8, "layout=nchw", "color"),
    ],
)
def test_a_missing_key_is_named_and_its_fix_works(
    shape: list[Any], kind: int, words: str, missing: str, folder: Path
) -> None:
    model(folder / "m.onnx", shape, kind)
    given = ["--image", words] if words else []
    ended = call("m.onnx", "-i", "a.png", *given)
    (fix,) = fixes(ended, 2, "QR005")
    assert f"a.png needs --image with {missing}: " in ended.err
    added = fix.removeprefix("add --image ").removesuffix(", or what training used").strip("'")
    assert call("m.onnx", "-i", "a.png", *given, "--image", added).code == 0


@pytest.mark.parametrize(
    ("words", "kind", "code", "said"),
    [
        ("color=rgb scale=1 layout=nhwc", FLOAT, "QR003", "--image layout=nhwc color=rgb does not fit input 'image'"),
        ("color=rgb scale=1 size=6", FLOAT, "QR003", "size=6x6 does not fit"),
        ("color=gray scale=1", FLOAT, "QR003", "color=gray does not fit"),
        ("color=rgb scale=1/255", UINT8, "QR003", "omit scale, mean and std"),
        ("color=rgb", INT8, "QR003", "mean=128"),
        ("color=rgb scale=1 mean=1,2", FLOAT, "QR005", "--image mean has 2 numbers, and rgb has 3 channels"),
        ("color=rgb", TensorProto.BOOL, "QR003", "--image color=rgb does not fit input 'image'"),
        ("sise=4", FLOAT, "QR005", "did you mean --image size=4?"),
        ("size=0", FLOAT, "QR005", "size=WIDTHxHEIGHT"),
        ("std=0", FLOAT, "QR005", "a number above 0"),
        ("scale=1/0", FLOAT, "QR005", "a number above 0"),
        ("resize", FLOAT, "QR005", "KEY=VALUE"),
    ],
)
def test_settings_that_do_not_fit(words: str, kind: int, code: str, said: str, folder: Path) -> None:
    model(folder / "m.onnx", [1, 3, 2, 5], kind)
    ended = call("m.onnx", "-i", "a.png", "--image", words, "--json")
    assert (ended.code, ended.json["error"]["code"]) == (2, code)
    assert said in ended.err


def png(bits: int) -> bytes:
    """A gray image of 4x2 with so many bits a channel."""
    rows = (b"\0" + bytes(range(4 * bits // 8))) * 2
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 4, 2, bits, 0, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(data)) + kind + data for kind, data in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(c + struct.pack(">I", zlib.crc32(c[4:])) for c in chunks)


def bomb() -> bytes:
    data = bytearray(png(8))
    data[16:24] = struct.pack(">II", 40_000, 40_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "an empty file"),
        (b"GIF89a", "a file that starts with"),
        (png(8)[:50], "a damaged image"),
        (png(16), "16 bits a channel"),
        (bomb(), "million pixels"),
    ],
)
def test_files_that_are_no_whole_image(data: bytes, said: str, folder: Path) -> None:
    (folder / "a.png").write_bytes(data)
    ended = call("m.onnx", "-i", "a.png", "--image", "color=rgb scale=1", "--json")
    assert (ended.code, ended.json["error"]["code"]) == (2, "QR007"), ended.err
    assert said in ended.err


def test_a_missing_image(folder: Path) -> None:
    assert "did you mean a.png?" in says(call("m.onnx", "-i", "b.png"), 2, "QR004").err


def test_other_modes(folder: Path) -> None:
    """A palette is its colours, gray is repeated, opaque alpha is dropped; transparent pixels are an error."""
    colors = np.random.default_rng(1).integers(0, 2, (2, 5, 3), np.uint8) * 255
    image = PIL.fromarray(colors)
    image.quantize(8).save(folder / "palette.png")
    image.convert("RGBA").save(folder / "alpha.png")
    image.convert("L").save(folder / "gray.png")
    alpha = image.convert("RGBA")
    alpha.putpixel((0, 0), (1, 2, 3, 0))
    alpha.save(folder / "clear.png")
    words = ["--image", "color=rgb scale=1"]
    for name in ("palette.png", "alpha.png"):
        assert np.array_equal(made("-i", name, *words)[0].transpose(1, 2, 0), colors), name
    assert "rgb, opaque alpha dropped" in call("m.onnx", "-i", "alpha.png", *words).out
    gray = made("-i", "gray.png", *words)[0]
    assert (gray == gray[:1]).all()
    assert "rgb from gray" in call("m.onnx", "-i", "gray.png", *words).out
    says(call("m.onnx", "-i", "clear.png", *words), 2, "transparent pixels", "color=rgba")


def test_the_orientation_of_a_camera(files: np.ndarray, folder: Path) -> None:
    """6: the camera was turned by a quarter, so an upright image has other sides."""
    exif = PIL.Exif()
    exif[0x0112] = 6
    PIL.fromarray(files).save(folder / "turned.png", exif=exif)
    says(call("m.onnx", "-i", "turned.png", "--image", "color=rgb scale=1"), 2, "needs --image with exif")
    ignored = made("-i", "turned.png", "--image", "color=rgb scale=1 exif=ignore")[0]
    assert np.array_equal(ignored.transpose(1, 2, 0), files)
    model(folder / "m.onnx", [1, 3, 5, 2])
    upright = made("-i", "turned.png", "--image", "color=rgb scale=1 exif=apply")[0]
    assert np.array_equal(upright.transpose(1, 2, 0), np.rot90(files, -1))


def test_memory_and_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PIL.new("RGB", (2000, 2000)).save(folder / "big.png")
    words = ["-i", "big.png", "--image", "color=rgb scale=1 size=5x2"]
    assert call("m.onnx", *words, "--max-memory", "1MB").code == 5
    assert call("m.onnx", *words, "--max-memory", "100MB").code == 0
    monkeypatch.setitem(sys.modules, "PIL", None)
    says(call("m.onnx", *words), 4, "QR012", "pip install pillow")


def test_settings_of_a_project(folder: Path) -> None:
    """[tool.qrun.image]: --image overrides its keys one by one."""
    (folder / "pyproject.toml").write_text(
        '[tool.qrun.image]\ncolor = "rgb"\nscale = "1/255"\nmean = [0.5, 0.5, 0.25]\n'
    )
    ended = call("m.onnx", "-i", "a.png", "--image", "scale=1")
    assert "rgb, pixels from 0 to 255, mean 0.5 0.5 0.25, no std" in ended.out
    assert "image from [tool.qrun]" in ended.err
    assert call("check", "m.onnx").code == 0
    (folder / "pyproject.toml").write_text("[tool.qrun.image]\nsise = 4\n")
    says(call("m.onnx", "-i", "a.png"), 2, "QR009", "image.sise")


def test_other_commands_take_images(folder: Path) -> None:
    words = ["--image", "color=rgb", "scale=1/255"]
    assert (
        "image from a.png: 5x2, rgb, /255"
        in call("compare", "m.onnx", "-i", "a.png", *words, "--against", "native").err
    )
    assert call("profile", "m.onnx", "-i", "a.png", *words, "-n", "3").code == 0
    (folder / "images").mkdir()
    for name in ("1.png", "2.bmp", "10.webp"):
        PIL.open("a.png").save(folder / "images" / name)
    ended = call("compare", "m.onnx", "m.onnx", "-i", "images", *words)
    assert ended.code == 0, ended.err
    assert "images/1.png: 5x2, rgb, /255, no mean, no std, nchw and 2 more" in " ".join(ended.out.split())


def cast_model(path: Path, kind: int) -> None:
    ends = [helper.make_tensor_value_info(name, kind, ["N"]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize(
    ("given", "kind", "want", "said"),
    [
        (np.array([0.5, 0.1]), FLOAT, [0.5, np.float32(0.1)], "cast from float64, 1 of 2 values rounded"),
        (np.array([3, -4], np.int64), TensorProto.INT32, [3, -4], "cast from int64"),
        (np.array([3.0, 255.0], np.float32), UINT8, [3, 255], "cast from float32"),
        (np.array([2**53 + 1]), TensorProto.DOUBLE, [2**53], "cast from int64, 1 of 1 values rounded"),
        (np.array([np.inf, np.nan]), FLOAT, None, "cast from float64"),
        (np.array([1, 0]), TensorProto.BOOL, [True, False], "cast from int64"),
    ],
)
def test_cast(given: np.ndarray, kind: int, want: list[Any] | None, said: str, folder: Path) -> None:
    cast_model(folder / "c.onnx", kind)
    npy(folder / "x.npy", given)
    assert ", or --cast" in call("c.onnx", "-i", "x.npy").err
    got = made("-i", "x.npy", "--cast", model="c.onnx")
    assert want is None or got.tolist() == want
    assert f"from x.npy: {said}\n" in call("c.onnx", "-i", "x.npy", "--cast").out


@pytest.mark.parametrize(
    ("given", "kind", "why"),
    [
        (np.array([1e300]), FLOAT, "1e+300 is beyond float32"),
        (np.array([256]), UINT8, "256 is outside 0 .. 255"),
        (np.array([0.5]), UINT8, "0.5 is not a whole number"),
        (np.array([np.nan]), TensorProto.INT64, "nan is not a whole number"),
        (np.array([2.0**63]), TensorProto.INT64, "is outside"),
        (np.array([2**64 - 1], np.uint64), TensorProto.INT64, "is outside"),
        (np.array([2]), TensorProto.BOOL, "2 is outside 0 .. 1"),
    ],
)
def test_values_that_another_type_does_not_hold(given: np.ndarray, kind: int, why: str, folder: Path) -> None:
    cast_model(folder / "c.onnx", kind)
    npy(folder / "x.npy", given)
    assert "--cast" not in call("c.onnx", "-i", "x.npy").err
    says(call("c.onnx", "-i", "x.npy", "--cast"), 2, "QR003", "--cast cannot convert x.npy", why)


def test_text_is_not_cast(folder: Path) -> None:
    cast_model(folder / "c.onnx", FLOAT)
    npy(folder / "x.npy", np.array(["1"]))
    assert call("c.onnx", "-i", "x.npy", "--cast").code == 2
