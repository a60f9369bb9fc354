"""Converts a file: reads it, converts its groups, tries both forms, writes the new one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import onnx
import onnx.version_converter
from onnx.external_data_helper import load_external_data_for_model

from qrun.arithmetics import Arithmetic
from qrun.converting.conversion import ConvertedModel
from qrun.converting.integer import to_integer
from qrun.converting.proto import Payloads, has_external_data, save, to_proto, without_calls
from qrun.converting.qdq import to_qdq
from qrun.converting.qoperator import to_qoperator
from qrun.converting.requantize import function
from qrun.converting.simplify import fold, strip
from qrun.converting.trial import Trial, in_time, try_both
from qrun.declare.frozen import frozen
from qrun.errors import UnsupportedError
from qrun.ir import Array, Model
from qrun.ir.load import load, model_file, parse, read_file
from qrun.ir.wire import lift
from qrun.memory import ResourceLimits
from qrun.running.session import Session

Form = Literal["", "qoperator", "qdq", "integer"]


@frozen
class ConversionOptions:
    """What a call asks for. form: "" to keep it. family: the arithmetic of the form ``integer``. strict: only groups
    whose codes are the same for all inputs. opset: of ai.onnx; 0 to keep it."""

    form: Form
    family: Arithmetic
    strict: bool = False
    fold: bool = False
    strip: bool = False
    opset: int = 0


class Converter:
    """A model file and its conversion.

    source: a path, or the bytes of a file. Raises as `load`, and UnsupportedError if onnx cannot convert to the opset.
    """

    def __init__(self, source: str | bytes, wishes: ConversionOptions) -> None:
        source = source if isinstance(source, bytes) else str(model_file(source))
        lifted = None if isinstance(source, bytes) or wishes.opset else lift(Path(source))
        self.model = load(source, lifted=lifted)
        self._folder = Path() if isinstance(source, bytes) else Path(source).parent
        self._payloads: Payloads = {}
        self._proto = onnx.ModelProto() if lifted is None else parse(lifted.proto, self.model.label)
        if lifted is not None and not self._proto.functions:
            self._payloads = lifted.payloads
        else:
            self._proto = parse(source if isinstance(source, bytes) else read_file(Path(source)), self.model.label)
        self._outside = has_external_data(self._proto)
        model = self.model
        if self._proto.functions or wishes.opset or wishes.form == "integer":  # such forms are loaded as messages
            load_external_data_for_model(self._proto, str(self._folder))
        if wishes.opset and wishes.opset != model.opsets.get("", 1):
            self._proto = self._with_opset(wishes.opset)
        if self._proto.functions or wishes.opset:
            model = self._without_inlining()
        model = fold(model) if wishes.fold else model
        model = strip(model) if wishes.strip else model
        self.conversion = _convert(model, wishes)
        own = wishes.form == "integer" and self.conversion.groups
        self._functions = (function(wishes.family, model.opsets.get("", 1)),) if own else ()

    def try_both(self, feeds: Mapping[str, Array], limits: ResourceLimits) -> Trial:
        """Run both forms on these inputs and compare them. Raises RunError if one of them fails."""

        def session(model: Model) -> Session:
            calls = model is not self.model and (self._proto.functions or self._functions)
            whole = without_calls(self._proto, model, self._functions) if calls else model
            return Session(in_time(whole), fuse=False, **limits)

        return try_both(self.model, self.conversion, feeds, session)

    def save(self, target: str) -> list[str]:
        """Write the new model; returns the names of the files. Raises CallError if one cannot be written."""
        return save(self._write(self.conversion.model), target, self._folder, self._outside, self._payloads)

    def _write(self, model: Model) -> onnx.ModelProto:
        """A model as a ModelProto, with the functions that it calls."""
        return to_proto(self._proto, model, self._functions)

    def _with_opset(self, opset: int) -> onnx.ModelProto:
        """The model in another opset, by onnx's converter. It loses functions, and changes inputs and outputs."""
        try:
            if self._proto.functions:
                raise ValueError("its converter loses model-local functions")
            made = onnx.version_converter.convert_version(self._proto, opset)
            for part in ("input", "output"):
                made.graph.ClearField(part)
                getattr(made.graph, part).extend(getattr(self._proto.graph, part))
            return made
        except Exception as error:
            facts = [("got", " ".join(str(error).split())[:200] or type(error).__name__)]
            newest, fix = onnx.defs.onnx_opset_version(), "omit --opset"
            if opset > newest:
                facts, fix = (
                    [("expected", f"at most {newest}, the newest of onnx {onnx.__version__}")],
                    f"--opset {newest}",
                )
            what = f"onnx cannot convert the model to opset {opset}"
            raise UnsupportedError("QR106", what, where=[self.model.label], facts=facts, fixes=[fix]) from None

    def _without_inlining(self) -> Model:
        """The model, with calls of its local functions as nodes, so that the new file has them too."""
        bare = onnx.ModelProto()
        bare.CopyFrom(self._proto)
        del bare.functions[:]
        return load(bare, source=self.model.label)


def _convert(model: Model, wishes: ConversionOptions) -> ConvertedModel:
    """The conversion to the form."""
    if wishes.form == "integer":
        return to_integer(model, wishes.family, strict=wishes.strict)
    if wishes.form == "qoperator":
        return to_qoperator(model, strict=wishes.strict)
    return to_qdq(model, strict=wishes.strict) if wishes.form == "qdq" else ConvertedModel("", model, model, (), ())
