"""Converts a file: reads it, converts its groups, tries both forms, writes the new one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import onnx
from onnx.external_data_helper import load_external_data_for_model

from qrun.arithmetics.family import Arithmetic
from qrun.converting.integer import to_integer
from qrun.converting.proto import save, to_proto
from qrun.converting.qdq import to_qdq
from qrun.converting.qoperator import to_qoperator
from qrun.converting.requantize import function
from qrun.converting.trial import Trial, try_both
from qrun.ir import Array, Model
from qrun.ir.load import load, parse, read_file
from qrun.memory import ResourceLimits
from qrun.running.session import Session

Form = Literal["qoperator", "qdq", "integer"]


class Converter:
    """A model file and its conversion.

    source: a path, or the bytes of a file. family: the arithmetic of the form ``integer``. strict: only groups whose
    codes are the same for all inputs. Raises as `load`.
    """

    def __init__(self, source: str | bytes, form: Form, family: Arithmetic, *, strict: bool = False) -> None:
        self.model = load(source)
        self._folder = Path() if isinstance(source, bytes) else Path(source).parent
        data = source if isinstance(source, bytes) else read_file(Path(source))
        self._proto = parse(data, self.model.label)
        model = self._without_inlining()
        if form == "integer":
            self.conversion = to_integer(model, family, strict=strict)
            self._functions = (function(family, model.opsets.get("", 1)),) if self.conversion.groups else ()
        else:
            self.conversion = (to_qoperator if form == "qoperator" else to_qdq)(model, strict=strict)
            self._functions = ()

    def _without_inlining(self) -> Model:
        """The model, with calls of its local functions as nodes, so that the new file has them too."""
        if not self._proto.functions:
            return self.model
        bare = onnx.ModelProto()
        bare.CopyFrom(self._proto)
        del bare.functions[:]
        load_external_data_for_model(bare, str(self._folder))
        return load(bare, source=self.model.label)

    def try_both(self, feeds: Mapping[str, Array], limits: ResourceLimits) -> Trial:
        """Run both forms on these inputs and compare them. Raises RunError if one of them fails."""

        def session(model: Model) -> Session:
            own = self._proto.functions or self._functions
            return Session(self._write(model) if own else model, fuse=False, **limits)

        return try_both(self.conversion, feeds, session)

    def save(self, target: str) -> list[str]:
        """Write the new model; returns the names of the files. Raises CallError if one cannot be written."""
        return save(self._write(self.conversion.model), target, self._folder)

    def _write(self, model: Model) -> onnx.ModelProto:
        """A model as a ModelProto, with the functions that it calls."""
        return to_proto(self._proto, model, self._functions)
