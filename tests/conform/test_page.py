"""The programs on docs/conformance.md: what a reader copies from the page compiles and runs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from qrun.conform.run import conform
from qrun.conform.runtimes import runtime
from qrun.conform.suite import Suite
from qrun.ir.tensorfile import read_tensor, tensor_bytes
from qrun.memory import Budget

PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
COPY = """
#include "tensor.h"
int main(int count, char **words) {
  tensor t = read_tensor(words[1]);
  write_tensor(words[2], &t);
  return count != 3;
}
"""

MINE = """
class Refused(Exception): ...
class Unsupported(Exception): ...
def run(proto, feeds):
    raise (Refused if len(feeds) % 2 else Unsupported)("it has", len(feeds), "inputs")
"""


def code(language: str, first: str) -> str:
    """The block of the page in a language that contains a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (found,) = (block for block in blocks if first in block)
    return str(found)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_tensors_are_read_and_written_in_c(tmp_path: Path) -> None:
    (tmp_path / "tensor.h").write_text(code("c", "tensor.h"))
    (tmp_path / "copy.c").write_text(COPY)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    subprocess.run(["gcc", *flags, "copy.c", "-o", "copy"], cwd=tmp_path, check=True)
    for array in (
        np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        np.array(1.5, np.float32),
        np.zeros((2, 0, 300), np.int32),
        np.array([1, -2, 3], ml_dtypes.int4),
        np.ones(70000, ml_dtypes.bfloat16),
    ):
        (tmp_path / "in.pb").write_bytes(tensor_bytes(array, "a name"))
        subprocess.run(["./copy", "in.pb", "out.pb"], cwd=tmp_path, check=True, env={"ASAN_OPTIONS": "detect_leaks=0"})
        _, got = read_tensor(tmp_path / "out.pb", Budget(1 << 24))
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert got.tobytes() == array.tobytes()


@pytest.mark.parametrize("form", ["cmd:{0} {{model}} {{inputs}} {{outputs}}", "batch:{0}"])
def test_the_runner_in_python_says_what_it_lacks(tmp_path: Path, form: str) -> None:
    (tmp_path / "runner.py").write_text(code("python", "import mine"))
    (tmp_path / "mine.py").write_text(MINE)
    suite, words = Suite(), f"{shlex.quote(sys.executable)} {tmp_path}/runner.py"
    cases = suite.select(["matmulinteger-10/types"])[:2] + suite.select(["known/quantizelinear"])[:2]
    found = conform(suite, cases, runtime(form.format(words)))
    assert {case.verdict for case in found.cases} == {"refused", "unsupported"}
