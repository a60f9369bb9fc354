"""IREE: the model imported to MLIR, compiled for the CPU through LLVM, and run by its local-sync driver."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import numpy as np

from qrun.conform.adapters import Tensor, dtype_of, tensor

UNSUPPORTED = (
    "failed to legalize operation 'torch.operator'",
    "unsupported ONNX",
    "NoSuchType",
    "element type has not been implemented",
    "unhandled attribute",
    "ONNX tensor type",
    "unknown encoding",
)
COMPILE = ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host", "--iree-input-type=onnx")
_folder = tempfile.TemporaryDirectory(prefix="qrun-")


def version() -> str:
    import_module("iree.compiler")
    import_module("iree.runtime")
    return installed("iree-base-compiler")


def run(model: bytes, inputs: Mapping[str, Tensor], outputs: Mapping[str, Any], option: str) -> list[Tensor | None]:
    folder = Path(_folder.name)
    source, mlir, code = folder / "m.onnx", folder / "m.mlir", folder / "m.vmfb"
    source.write_bytes(model)
    for path in (mlir, code):
        path.unlink(missing_ok=True)
    _called([sys.executable, "-m", "iree.compiler.tools.import_onnx", str(source), "-o", str(mlir)], mlir)
    _called([str(Path(sys.executable).parent / "iree-compile"), str(mlir), *COMPILE, "-o", str(code)], code)
    rt = import_module("iree.runtime")
    module = rt.load_vm_flatbuffer(code.read_bytes(), driver="local-sync")
    name = next(n for n in module.vm_module.function_names if not n.startswith("__") and "$" not in n)
    made = module[name](*(t.numpy() for t in inputs.values()))
    rows = made if isinstance(made, (tuple, list)) else [made]
    arrays = (np.asarray(row.to_host() if hasattr(row, "to_host") else row) for row in rows)
    return [_typed(array, want) for array, want in zip(arrays, outputs.values(), strict=False)]


def _called(command: list[str], target: Path) -> None:
    """Run a tool; its first line with an error is the message."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    if done.returncode or not target.exists():
        lines = [
            line for line in done.stderr.splitlines() if "error:" in line or "Error" in line
        ] or done.stderr.splitlines()[-1:]
        raise RuntimeError(
            f"exit code {done.returncode}: {lines[0].partition('error: ')[2] or lines[0] if lines else ''}"
        )


def _typed(array: Any, want: tuple[int, Any]) -> Tensor:
    """IREE knows no sign of integers: their bits are read as the declared type."""
    due = dtype_of(want[0])
    return tensor(
        array.view(due)
        if array.dtype != due and array.dtype.kind in "iu" and array.dtype.itemsize == due.itemsize
        else array
    )
