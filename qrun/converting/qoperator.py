"""Turns groups of DequantizeLinear, a float operator and QuantizeLinear into operators of ai.onnx and com.microsoft
that compute with integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from qrun.converting.conversion import CLIP, EQUAL, NOT_EQUAL, ConvertedModel, Group, KeptNode, names_in_use
from qrun.converting.elsewhere import refused_groups
from qrun.converting.verdicts import Values, judge
from qrun.declare.stored import Part, constants_of, parts
from qrun.ir import Array, Model, Node
from qrun.ir.schema import MS, OWN, version
from qrun.passes import Fused, fuse
from qrun.passes._shapes import known_shapes
from qrun.passes._sides import is_dequantize, is_quantize

NONE: Mapping[str, str] = MappingProxyType({})


def to_qoperator(model: Model, *, strict: bool = False, refused: Mapping[str, str] = NONE) -> ConvertedModel:
    """The model with integer operators. strict: only those whose codes are the same for all inputs. refused: reasons
    why float nodes stay, by their outputs."""
    move = all(_fits(node, model) for node in fuse(model).literal.nodes)
    refused = dict(refused)
    while True:
        made = _convert(fuse(model, skip=refused, move=move), refused)
        unrun = refused_groups(made)
        unwanted = dict(pair for group in made.groups for pair in _refuse(group, model, strict, unrun))
        if not unwanted:
            return made
        refused |= unwanted


def _fits(node: Node, model: Model) -> bool:
    """Whether the model's opset has this version of the node's operator."""
    return bool(node.domain) or version("", node.op_type, model.opsets.get("", 1)) == node.version


def _refuse(group: Group, model: Model, strict: bool, unrun: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The output of the float node, and why the group must stay in float."""
    names = [name for node in group.old if node.label == group.name for name in node.outputs]
    if any(node.op_type == "Clip" for node in group.new) and model.opsets.get("", 1) < CLIP:
        yield names[0], f"its Relu or Clip limits codes, which takes opset {CLIP}"
    elif group.output in unrun:
        yield names[0], unrun[group.output]
    elif strict and group.verdict.kind != EQUAL:
        yield names[0], f"{NOT_EQUAL}: {group.verdict.reason}"


def _convert(fused: Fused, refused: Mapping[str, str]) -> ConvertedModel:
    """The conversion to the operators that the passes have found."""
    literal = fused.literal
    constants: dict[str, Part] = dict(parts(fused.model.constants))
    nodes = _with_clips(fused.model, constants)
    opsets = {domain: number for domain, number in fused.model.opsets.items() if domain != OWN}
    if any(node.domain == MS for node in nodes):
        opsets.setdefault(MS, 1)
    new = replace(fused.model, nodes=tuple(nodes), constants=constants_of(constants), opsets=opsets)
    values = Values(lambda name: _constant(name, new, literal), known_shapes(literal).get)
    skipped = {node.label: refused[name] for node in literal.nodes for name in node.outputs if name in refused}
    left = tuple(
        KeptNode(each.name, literal.nodes[each.index].op, skipped.get(each.name, each.reason)) for each in fused.refused
    )
    return ConvertedModel("qoperator", literal, new, tuple(_groups(fused, nodes, values)), left)


def _constant(name: str, *models: Model) -> Array | None:
    """The value of a constant of the first model that has it."""
    return next((found for model in models if (found := model.constant(name)) is not None), None)


def _with_clips(model: Model, constants: dict[str, Part]) -> list[Node]:
    """The nodes in operators that files may have: a table that limits codes is a Clip. Adds its limits to
    `constants`."""
    taken = names_in_use(model)
    nodes = []
    for node in model.nodes:
        if node.domain == OWN and node.op_type == "Table":
            table = model.constants[node.inputs[1]]
            limits = []
            for what, value in (("min", table.min()), ("max", table.max())):
                name = f"{node.outputs[0]}_{what}"
                while name in taken:
                    name += "_"
                taken.add(name)
                constants[name] = np.array(value)
                limits.append(name)
            constants.pop(node.inputs[1], None)
            number = version("", "Clip", max(CLIP, model.opsets.get("", 1)))
            nodes.append(Node(node.index, node.name, "", "Clip", number, (node.inputs[0], *limits), node.outputs))
        elif node.domain == OWN:
            nodes.append(replace(node, domain="", version=version("", node.op_type, model.opsets.get("", 1))))
        else:
            nodes.append(node)
    return nodes


def _groups(fused: Fused, nodes: list[Node], values: Values) -> Iterator[Group]:
    """The groups with an integer operator, each with its verdict."""
    literal, groups = fused.literal.nodes, fused.groups
    fresh = [(node, places) for node, places in zip(nodes, groups, strict=True) if _is_new(node, places, fused)]
    clips = {node.inputs[0]: node for node, _ in fresh if node.op_type == "Clip"}
    for node, places in fresh:
        if node.op_type == "Clip":
            continue
        old = [literal[place] for place in places]
        floats = (
            each for each in old if each.label == node.label and not is_dequantize(each) and not is_quantize(each)
        )
        operator = next(floats)
        integer = (node, clips[node.outputs[0]]) if node.outputs[0] in clips else (node,)
        verdict = judge(old, integer, values)
        yield Group(node.label, operator.op, node.op, integer[-1].outputs[0], tuple(old), integer, verdict)


def _is_new(node: Node, places: tuple[int, ...], fused: Fused) -> bool:
    """Whether a pass has made the node."""
    return all(fused.literal.nodes[place].op != node.op for place in places) or len(places) > 1
