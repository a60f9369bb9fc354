"""Converts a file: reads it, converts its groups, tries both forms, writes the new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import onnx
from onnx.external_data_helper import load_external_data_for_model

from qrun.converting.conversion import Conversion
from qrun.converting.proto import save, to_proto
from qrun.converting.qdq import to_qdq
from qrun.converting.qoperator import to_qoperator
from qrun.converting.trial import Trial, try_both
from qrun.ir import Array, Model
from qrun.ir.load import load, parse, read_file
from qrun.memory import ResourceLimits
from qrun.running.session import Session

Form = Literal["qoperator", "qdq"]
_FORMS: Mapping[Form, Callable[..., Conversion]] = {"qoperator": to_qoperator, "qdq": to_qdq}


class Converter:
    """A model file and its conversion.

    source: a path, or the bytes of a file. strict: only groups whose codes are the same for all inputs.
    Raises as `load`.
    """

    def __init__(self, source: str | bytes, form: Form, *, strict: bool = False) -> None:
        self.model = load(source)
        self._folder = Path() if isinstance(source, bytes) else Path(source).parent
        data = source if isinstance(source, bytes) else read_file(Path(source))
        self._proto = parse(data, self.model.label)
        self.conversion = _FORMS[form](self._without_inlining(), strict=strict)

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
            calls = to_proto(self._proto, model) if self._proto.functions else model
            return Session(calls, fuse=False, **limits)

        return try_both(self.conversion, feeds, session)

    def save(self, target: str) -> list[str]:
        """Write the new model; returns the names of the files. Raises CallError if one cannot be written."""
        return save(to_proto(self._proto, self.conversion.model), target, self._folder)
