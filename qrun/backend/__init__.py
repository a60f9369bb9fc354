"""qrun as a backend of ONNX: `onnx.backend.test`, and ONNX's backend scoreboard, run their cases in it.

>>> import onnx.backend.test, qrun.backend                                # doctest: +SKIP
>>> tests = onnx.backend.test.BackendTest(qrun.backend, __name__)         # doctest: +SKIP

`EXCLUDED` has the tests that qrun does not pass, each with the reason.

Imported by users only, and imports onnx. Knows no operators: a `Session` runs every model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper
from onnx.backend.base import Backend, BackendRep

from qrun.backend.excluded import EXCLUDED
from qrun.errors import CallError, UnsupportedError, choose
from qrun.ir.schema import OPSETS
from qrun.running.session import Session

if TYPE_CHECKING:
    import onnx

__all__ = ["EXCLUDED", "QrunBackend", "QrunRep", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]

DEVICE = "CPU"
TOLERANCES = ("rtol", "atol")
"""Options of a test that onnx's runner passes to `prepare` too; no backend needs them."""


class QrunRep(BackendRep):
    """A model that is ready to run."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        """Run the model and return its outputs in the graph's order.

        inputs: the values in the order of the graph's inputs, or by name, or the array of the only input. A sequence is
                a list of arrays, an empty optional value None.
        Raises CallError for inputs that do not fit the model, RunError if the run fails.
        """
        if not isinstance(inputs, Mapping):
            inputs = self._name(inputs if isinstance(inputs, (list, tuple)) else [inputs])
        return tuple(self.session.run(None, inputs))

    def _name(self, values: Sequence[Any]) -> dict[str, Any]:
        """Values by the names of the graph's inputs. Raises CallError if there are more or fewer."""
        names = [value.name for value in self.session.inputs]
        if len(names) != len(values):
            raise CallError(
                "QR003",
                f"{len(values)} inputs for a model of {len(names)}",
                facts=[("expected", ", ".join(names) or "no inputs")],
                fixes=["pass one value for each, or a dict"],
            )
        return dict(zip(names, values, strict=True))


class QrunBackend(Backend):
    """The functions of this module, as the class that onnx.backend.base describes."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether qrun runs on a device: ``CPU``, ``CPU:0``."""
        return device.partition(":")[0] == DEVICE

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = DEVICE, **options: Any) -> bool:
        """Whether qrun has every operator, type and opset of the model."""
        try:
            cls.prepare(model, device, **options)
        except UnsupportedError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = DEVICE, **options: Any) -> QrunRep:
        """Make a model ready to run. options: those of `qrun.Session`, such as ``backend="reference"``.

        Raises CallError for another device, ModelError or UnsupportedError for the model.
        """
        choose("device", device if not cls.supports_device(device) else DEVICE, [DEVICE])
        return QrunRep(Session(model, **{name: value for name, value in options.items() if name not in TOLERANCES}))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = DEVICE, **options: Any) -> tuple[Any, ...]:
        """Run a model once; see `prepare` and `QrunRep.run`."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = DEVICE, outputs_info: Any = None, **options: Any
    ) -> tuple[Any, ...]:
        """Run one node on tensors, in the order of its inputs or by name.

        outputs_info: the types and shapes of the outputs, which qrun infers.
        options:      ``opset_version`` (by default the newest), and those of `prepare`.
        """
        opset = options.pop("opset_version", OPSETS[-1])
        names = [name for name in dict.fromkeys(node.input) if name]
        given = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=True))
        arrays = {name: np.asarray(value) for name, value in given.items()}
        graph = helper.make_graph(
            [node],
            node.name or node.op_type,
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in arrays.items()
            ],
            [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        domains = {"": opset, node.domain: 1 if node.domain else opset}
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in domains.items()])
        return cls.run_model(model, arrays, device, **options)


is_compatible = QrunBackend.is_compatible
prepare = QrunBackend.prepare
run_model = QrunBackend.run_model
run_node = QrunBackend.run_node
supports_device = QrunBackend.supports_device
