"""Every fix that an error prints is typed: the call then works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call, npy
from onnx import TensorProto, helper

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def identity(path: Path, **inputs: tuple[int, list[Any]]) -> None:
    """A model that returns its inputs."""
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in inputs]
    ends = [
        [helper.make_tensor_value_info(name + end, *stated) for name, stated in inputs.items()] for end in ("", "_out")
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", *ends), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, path)


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    identity(folder / "gray.onnx", image=(FLOAT, [1, 1, 4, 6]))
    identity(folder / "color.onnx", image=(FLOAT, ["N", 3, "H", "W"]))
    identity(folder / "two.onnx", ids=(INT, ["N", "S"]), mask=(INT, ["N", "S"]))
    identity(folder / "flags.onnx", keep=(BOOL, ["N", 2]))
    identity(folder / "row.onnx", x=(FLOAT, [1, 4]))
    npy(folder / "x.npy", np.zeros((1, 1, 4, 6), np.float32))
    npy(folder / "flat.npy", np.zeros((4, 6), np.float32))
    npy(folder / "hwc.npy", np.zeros((4, 6, 3), np.float32))
    npy(folder / "double.npy", np.zeros((1, 1, 4, 6)))
    npy(folder / "a b.npy", np.zeros((1, 1, 4, 6), np.float32))
    with (folder / "FILE").open("wb") as file:
        np.save(file, np.zeros((1, 2), np.int64))


CALLS = [
    "compare gray.onnx x.npy",
    "compare gray.onnx gray.onnx x.npy",
    "compare gray.onnx 'a b.npy'",
    "compare x.npy gray.onnx",
    "run gray.onnx x.npy",
    "profile gray.onnx x.npy",
    "run gray.onnx -i flat.npy",
    "run color.onnx -i hwc.npy",
    "run gray.onnx -i double.npy",
    "run gray.onnx -i y.npy",
    "run gray.onnx -i imge=x.npy",
    "run gray.onnx -i 'imge=a b.npy'",
    "run gray.onnx --max-memory 10",
    "run gray.onnx --shape image:2x1x4x6",
    "run gray.onnx --shape N=3",
    "run color.onnx --shape image:3x32x32",
    "run color.onnx --shape image:32x32",
    "run color.onnx --shape image:2x4x8x8",
    "run color.onnx --shape imag:2x3x8x8",
    "run color.onnx --shape n=2",
    "run color.onnx --shape 'image[0]=2'",
    "run color.onnx --shape N=2,H=3",
    "run color.onnx --shape N=many",
    "run color.onnx --shape N=2 --shape N=3",
    "run two.onnx --shape ids:3x2x2",
    "run two.onnx -i 'ids=[[1,2]]'",
    "run two.onnx -i '[[1,2]]' -i 'mask=[[1,1]]'",
    "run two.onnx -i 'idz=[[1,2]]' -i 'mask=[[1,1]]'",
    "run two.onnx -i 'ids=[[1,2]],mask=[[1,1]]'",
    "run two.onnx -i 'ids=[1,2]' -i 'mask=[[1,1]]'",
    "run flags.onnx -i 'keep=[[1,0]]'",
    "run flags.onnx -i 'keep=[true,false]'",
    "run row.onnx -i 'x=[[[1,2,3,4]]]'",
    "run row.onnx -i 'x=[1,2,3,4]'",
    "run gray.onx",
    "runn gray.onnx",
    "explain Convv",
    "explain QR9999",
    "run gray.onnx --bogus",
    "check gray.onnx --select QR999",
    "check gray.onnx -o x.foo",
    "check gray.onnx --format foo",
    "profile gray.onnx -n many",
    "profile gray.onnx --backend ort --against ort",
    "compare gray.onnx --min-sqnr 3",
    "compare gray.onnx gray.onnx --arith ort",
    "compare gray.onnx records",
    "inspect gray.onnx x.npy",
]


def typed(words: list[str], fix: str) -> Iterator[list[str] | None]:
    """The calls that a fix says to make in place of this one; None for one that says what to leave out, or what is
    wrong, in words only."""
    text = fix.removesuffix("?").removeprefix("did you mean ").removeprefix("or ").removeprefix("add ")
    text = re.sub(
        r"^one axis is missing: |^one axis is too many: | fits$| creates a record$| names the format$", "", text
    )
    text = re.sub(r", or --cast$| to fill the missing ones.*| is enough up to here.*|^such as ", "", text)
    if fix.startswith("omit "):
        for option in re.findall(r"--[a-z-]+", fix):
            place = words.index(option)
            yield [*words[:place], *words[place + 2 :]]
        return
    if text.startswith("qrun "):
        yield shlex.split(text.removesuffix(" lists everything").removesuffix(" lists all codes"))[1:]
    elif text.startswith("one of: "):
        return
    elif text.startswith("-"):
        for choice in text.split(" for one input, or "):
            yield with_option(words, shlex.split(choice.removesuffix(" for a named dimension")))
    elif Path(text).exists():
        yield instead(words, text)
    elif re.match(r"np\.|x[.\[]|the axes look|\d axes are missing|convert it", text):
        expression = re.search(r"(np\.|x[.\[]).*", text)
        assert expression is not None
        file = words[-1]
        np.save(file, eval(expression[0].split(" for ")[0], {"np": np, "x": np.load(file)}))
        yield words
    else:
        yield instead(words, text.strip("'"))


def instead(words: list[str], word: str) -> list[str]:
    """The call with a word for the one that it resembles."""
    from difflib import get_close_matches

    (near,) = get_close_matches(word, words, 1)
    return [word if w == near else w for w in words]


def with_option(words: list[str], added: list[str]) -> list[str]:
    """The call with these options in place of the same one for the same input, else of the only one, else behind it."""
    name = added[0]
    short = {"--inputs": "-i"}.get(name, name)
    values = [place for place, word in enumerate(words) if word == short]
    mine = [p for p in values if len(added) < 2 or words[p + 1].partition("=")[0] == added[1].partition("=")[0]]
    wrong = [p for p in values if words[p + 1][0] in "[=" or not words[p + 1].startswith(("ids=", "mask="))]
    loose = [word for word in words if word.endswith(".npy") and words[words.index(word) - 1] != "-i"]
    place = next(iter(mine or wrong), None)
    if place is not None:
        return [*words[:place], *added, *words[place + 2 :]]
    return [*(word for word in words if word not in loose), *added]


@pytest.mark.parametrize("line", CALLS)
def test_a_fix_works(line: str, folder: Path) -> None:
    words = shlex.split(line)
    ended = call(*words)
    assert ended.code >= 2, ended.out
    shown = [text.removeprefix("   =  fix: ") for text in ended.err.splitlines() if text.startswith("   =  fix: ")]
    assert shown, ended.err
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for fix in shown:
        for meant in typed(words, fix):
            again = call(*meant)
            assert again.code in (0, 1), f"{line}\n{ended.err}\ntyped: qrun {shlex.join(meant)}\n{again.err}"
            for path, data in before.items():
                path.write_bytes(data)
