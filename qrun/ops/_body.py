"""Operators that are defined as a sequence of ai.onnx nodes: both backends run those nodes one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.ops._complete import ALWAYS
from qrun.ops._op import Array, Context, OpDef, find
from qrun.ops.lowering.kernel import Inputs, LoweringContext, NativeKernel, Stage, decline_error, staged_kernel

Value = int | str | None


@frozen
class InnerNode:
    """A node of ai.onnx, one step of a larger operator. output: its result's name; "": output 0 of the larger operator.

    inputs: each is an input number of the larger operator, the name of an earlier result, or None if it is omitted.
    """

    op_type: str
    inputs: tuple[Value, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""
    version: int = 24

    @property
    def definition(self) -> OpDef:
        """The operator's declaration."""
        found = find("", self.op_type, self.version)
        assert found is not None
        return found

    def run(self, args: Sequence[Any], ctx: Context) -> Any:
        """Run the operator's reference kernel."""
        return self.definition.compute(args, self.attributes, ctx)


def run_nodes(nodes: Sequence[InnerNode], inputs: Inputs, ctx: Context) -> dict[str, Any]:
    """Runs the nodes and returns their results by name: an array, or a tuple if the operator has several results."""
    made: dict[str, Any] = {}
    for node in nodes:
        made[node.output] = node.run([_value(value, inputs, made) for value in node.inputs], ctx)
    return made


def node(op_type: str, inputs: Sequence[Array | None], ctx: Context, version: int = 24, **attributes: Any) -> Any:
    """Runs one node of ai.onnx on these arrays in the reference kernel, and returns its result."""
    return InnerNode(op_type, (), attributes, version=version).run(inputs, ctx)


def _value(value: Value, inputs: Inputs, made: Mapping[str, Any]) -> Any:
    """An input of the outer node by its position, or the named output of an inner node."""
    if value is None:
        return None
    return inputs[value] if isinstance(value, int) else made[value]


def dequantize(codes: Array, scale: Array, zero_point: Array, ctx: Context) -> Array:
    """The real values of the codes of a tensor with one scale, as DequantizeLinear-13 computes them."""
    return np.asarray(node("DequantizeLinear", [codes, scale, zero_point], ctx, version=13))


def nodes_kernel(
    site: LoweringContext, nodes: Sequence[InnerNode], outputs: Mapping[str, int] | None = None
) -> NativeKernel:
    """One kernel that runs the native kernels of the nodes in order. Raises Declined if a node has none.

    outputs: for outputs of the larger operator except output 0: the output's number, by the name of a node's result.
    """
    from qrun.native.kernels.copy import view

    stages: list[Stage] = []
    made: dict[str, Array] = {}
    for index, node in enumerate(nodes):
        kernel = _kernel(site, index, node, [_value(value, site.inputs, made) for value in node.inputs])
        for stage in kernel.stages:
            inputs = tuple(f"{index} {v}" if isinstance(v, str) else node.inputs[v] for v in stage.inputs)
            output = f"{index} {stage.output}" if isinstance(stage.output, str) else node.output or 0
            stages.append(Stage(stage.operation, tuple(v for v in inputs if v is not None), output))
        result = stages[-1].operation.result
        made[node.output] = np.empty(result.shape, result.dtype)
    shown = [stage.operation for stage in stages if stage.operation.tight]
    for name, number in (outputs or {}).items():
        same = view(site.engine, made[name].shape, made[name].shape, made[name].dtype)
        stages.append(Stage(same, (name,), number))
    return staged_kernel(site, stages, shown, ALWAYS)


def _kernel(site: LoweringContext, index: int, node: InnerNode, args: Sequence[Any]) -> NativeKernel:
    """The native kernel of an inner node; `index` is its number."""
    definition = node.definition
    if definition.lowering is None:
        raise decline_error(f"no native kernel for its {node.op_type}")
    missing = len(definition.inputs) - len(args)
    fixed = [value is None or (isinstance(value, int) and site.fixed[value]) for value in node.inputs]
    given = definition.signature.parameters.values()
    defaults = {p.name: p.default for p in given if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name != "ctx"}
    inner = replace(
        site,
        inputs=(*args, *(None,) * missing),
        fixed=(*fixed, *(True,) * missing),
        names=tuple(p.name for p in definition.inputs),
        attributes={**defaults, **node.attributes},
        ctx=replace(site.ctx, version=node.version, outputs=1, wanted=(True,)),
        reference=lambda inputs, ctx: definition(*inputs, **node.attributes, ctx=ctx),
        memo=site.memo.once(("node", index), Memo),
    )
    kernel = definition.lowering(inner)
    if not kernel.stages:
        raise decline_error(f"its {node.op_type} is more than a step of a program")
    return kernel
