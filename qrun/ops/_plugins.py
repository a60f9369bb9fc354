"""Imports the code of custom operators: files that the command line names, and installed packages.

Nothing else is imported: no file beside a model, and none that a project's settings name. Libraries of ONNX functions
need no code; ir/localfunctions.py lays them over a model.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from qrun.errors import CallError
from qrun.ir.localfunctions import add_library
from qrun.ops._installed import run_code
from qrun.ops._op import CUSTOM, LATEST, REGISTRY, OpDef, find

_LOADED: dict[str, None] = {}
"""The absolute paths of the files loaded in this process, in order."""


def loaded_files() -> tuple[str, ...]:
    """The files of custom operators that this process loaded, for other processes to load too."""
    return tuple(_LOADED)


def load_custom(path: str) -> None:
    """Loads a file of custom operators, once: an .onnx file with functions, or a Python file that declares operators.

    Raises CallError QR018.
    """
    if os.path.abspath(path) not in _LOADED:
        (load_functions if path.endswith(".onnx") else load_file)(path)


def load_file(path: str) -> None:
    """Runs a Python file that declares operators. Raises CallError QR018 if it cannot be run, or declares none."""
    from importlib.util import module_from_spec, spec_from_file_location

    if not os.path.isfile(path) or not path.endswith(".py"):
        there = os.path.isfile(path)
        fixes = [f"--functions {path}"] if path.endswith(".onnx") else []
        got = "another kind of file" if there else "a folder" if os.path.isdir(path) else "no such file"
        raise CallError(
            "QR018",
            f"cannot read operators from {path!r}",
            where=[path],
            facts=[("expected", "a Python file, NAME.py"), ("got", got)],
            fixes=fixes,
        )
    before = _custom()
    spec = spec_from_file_location(f"qrun_ops_{os.path.splitext(os.path.basename(path))[0]}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    run_code(lambda: spec.loader.exec_module(module), path)  # type: ignore[union-attr]
    if _custom() == before:
        fix = 'from qrun import op, then @op("Name", domain="com.example") above a function'
        raise CallError("QR018", f"{path} declares no operator", where=[path], fixes=[fix])
    _LOADED[os.path.abspath(path)] = None


def _custom() -> list[OpDef]:
    """The custom operators that are declared now."""
    return [each for versions in REGISTRY.declared.values() for each in versions if each.runner == CUSTOM]


def load_functions(path: str) -> None:
    """Adds the functions of an ONNX file, for models that use their operators without defining them.

    Raises CallError QR018 if the file has no functions, or one for an operator that qrun or ONNX has.
    """
    from qrun.ir.load import parse, read_file

    functions = parse(read_file(Path(path)), path).functions
    if not functions:
        raise CallError(
            "QR018",
            f"{path} has no functions",
            where=[path],
            facts=[("expected", "a ModelProto with model-local functions")],
            fixes=["--ops runs a Python file"],
        )
    for function in functions:
        if find(function.domain, function.name, LATEST) is not None:
            name = f"{function.domain}::{function.name}" if function.domain else function.name
            raise CallError(
                "QR018",
                f"qrun runs {name} itself",
                where=[path, f"function {name}"],
                facts=[("got", "a second definition")],
                fixes=["give the function another domain, and the model's nodes too"],
            )
    add_library(functions)
    _LOADED[os.path.abspath(path)] = None
