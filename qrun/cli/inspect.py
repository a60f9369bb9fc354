"""``qrun inspect``: what is in a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qrun.cli._base import define, format_options, heading, model_argument, print_json
from qrun.cli._options import general_options, read_model

if TYPE_CHECKING:
    from qrun.report.screen import Out

output = heading("Output")


@define(
    "inspect",
    examples=["qrun inspect m.onnx", "qrun inspect m.onnx --nodes | grep conv", "qrun inspect m.onnx -t '*_scale'"],
)
@model_argument
@output("--nodes", "List every node with types and shapes.")
@output("-t, --tensor PATTERN", "Show stored tensors whose name matches. Repeatable.", multiple=True)
@format_options("text", "json")
@general_options()
def command(out: Out, model: str, nodes: bool, tensor: tuple[str, ...], format: str) -> None:
    """Show inputs, outputs, operators and quantization of a model."""
    from qrun.documents.record import encode
    from qrun.errors import some
    from qrun.ir.infer import with_inferred
    from qrun.ir.load import load
    from qrun.ops import expansion
    from qrun.report.inspect import inspection, match_stored, print_nodes, print_overview
    from qrun.report.modelfacts import ModelFacts
    from qrun.report.stats import print_arrays

    source = read_model(model, ())
    loaded = load(source, source="stdin" if model == "-" else "", spared=not tensor)
    if loaded.missing_files:
        files = some(loaded.missing_files)
        out.note(f"QR104: external data missing: {files}, next to the model; what is shown does without")
    facts = ModelFacts(with_inferred(loaded, source, expansion))
    tensors = match_stored(facts, tensor) if tensor else None
    if format == "json":
        print_json(out, encode(inspection(facts, nodes, tensors)), 0)
        return
    if not nodes and tensors is None:
        print_overview(out.result, facts)
    if nodes:
        print_nodes(out.result, facts.model)
    if tensors is not None:
        if nodes:
            out.result.line()
        print_arrays(out.result, tensors)
