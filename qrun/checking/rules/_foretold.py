"""Predicts what a run would refuse, by calling reference kernels on stored tensors and inputs of the stated shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import prod
from types import MappingProxyType

import numpy as np

from qrun.checking.rules._rule import RULES, Finding, as_finding
from qrun.checking.rules._scope import Scope, Shape
from qrun.errors import OperatorError, QrunError
from qrun.ir import Array, Model, Node
from qrun.ir.schema import MS, VENDORS
from qrun.memory import Budget
from qrun.ops import Context, find
from qrun.running.derived import blank
from qrun.running.plan import locate, plan, step_of
from qrun.running.steps import REFUSALS
from qrun.running.typecheck import check_types

LITTLE = 1 << 14
"""The number of input elements, and of bytes, up to which a kernel may continue after its checks; otherwise it ends at
its first claim of memory."""
LARGE = 1 << 22
"""The most elements of an input; larger nodes are not judged, since a kernel may compute before it claims memory."""
_OF_SHAPES = ("QR202", "QR204", "QR206", "QR207", "QR208", "QR216", "QR301", "QR302", "QR303", "QR310")
"""Errors that kernels raise for types, shapes and attributes, for any values."""
_OF_SCALES = ("QR301", "QR302", "QR303", "QR310")
"""Errors that kernels raise for stored parameters, for any free sizes of other inputs."""
_JUDGED = frozenset(
    {
        *("Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "MaxPool", "LSTM", "GRU", "RNN"),
        *("Gemm", "MatMul", "MatMulInteger", "QLinearMatMul", "Transpose"),
    }
)
"""Operators of ai.onnx that accept all values of their inputs and claim memory before they compute."""

_LOOKING_UP = ("GatherBlockQuantized", "EmbedLayerNormalization", "QEmbedLayerNormalization")
"""Operators whose int32 and int64 inputs are indices, for which 0 is valid."""
_COUNTS = (np.dtype(np.int32), np.dtype(np.int64))


def obstacle(model: Model) -> QrunError | Finding | None:
    """The first error of a plan, a rule or a kernel that would keep the model from running; None if none is known."""
    try:
        plan(model)
    except QrunError as error:
        return error
    found = (f for rule in RULES.values() if rule.stops for f in rule.find(model, None))
    return next(found, None) or next(refusal_findings(model), None)


def foretold(
    model: Model, known: Sequence[Finding], inferred: Callable[[], Mapping[str, Shape]] | None
) -> list[Finding]:
    """The findings that a run would refuse, except at nodes with an error of a rule. known: the rules' findings."""
    wrong = {f.index for f in known if f.rule in RULES and RULES[f.rule].stops}
    shapes = inferred() if inferred else {}
    return list(refusal_findings(model, shapes, wrong))


def refusal_findings(
    model: Model, shapes: Mapping[str, Shape] = MappingProxyType({}), wrong: Collection[int | None] = ()
) -> Iterator[Finding]:
    """Yield a finding for each node of the main graph that a run would refuse for its stored tensors, attributes and
    shapes, except nodes that depend on a refused one. wrong: indices of nodes that are known to be refused.

    shapes: shapes of tensors, which override those that the file states. Only operators of com.microsoft and of
    quantizers are judged, and the operators of ai.onnx in _JUDGED. A free size is taken as 1; then only errors of
    stored parameters count.
    """
    scope, spoilt = Scope(model), set[str]()
    for node in model.nodes:
        if node.index in wrong or not spoilt.isdisjoint(node.inputs):
            spoilt.update(node.outputs)
        elif node.op_type in _JUDGED if not node.domain else node.domain in (MS, *VENDORS):
            error = _refusal(model, scope, node, shapes)
            if error is not None:
                spoilt.update(node.outputs)
                yield as_finding(error)


def _refusal(model: Model, scope: Scope, node: Node, shapes: Mapping[str, Shape]) -> OperatorError | None:
    definition = find(node.domain, node.op_type, node.version)
    if definition is None or any(node.subgraphs):
        return None
    free = False
    wanted: list[Array | tuple[tuple[int, ...], np.dtype[np.generic]] | None] = []
    vendor = node.domain in VENDORS
    for place, name in enumerate(node.inputs):
        value, shape, dtype = scope.value(name), shapes.get(name, scope.shape(name)), scope.dtype(name)
        if value is not None or not name:
            wanted.append(value)
            continue
        if shape is None or dtype is None or (dtype in _COUNTS and node.op_type not in _LOOKING_UP):
            return None  # unknown, or perhaps a length, for which zero is invalid
        if vendor and place:
            return None  # a number of bits or a scale, for which zero is invalid
        free |= not all(isinstance(size, int) for size in shape)
        sizes = tuple([size if isinstance(size, int) else 1 for size in shape])
        if prod(sizes) > LARGE:
            return None
        wanted.append((sizes, dtype))
    try:
        args = [blank(*each) if isinstance(each, tuple) else each for each in wanted]
        step = step_of(model, node)
        check_types(step, args)
        size = sum(array.size for array in args if array is not None)
        budget = Budget(LITTLE if size <= LITTLE else 0)
        ctx = Context("exact", node.version, len(node.outputs), tuple(map(bool, node.outputs)), False, budget)
        with np.errstate(all="ignore"):
            step.definition.compute(args, step.kwargs, ctx)
    except OperatorError as error:
        return locate(error, model, node, definition) if error.code in (_OF_SCALES if free else _OF_SHAPES) else None
    except (QrunError, *REFUSALS):  # a claim of memory, which comes after the checks
        return None
    return None
