"""``qrun export``: writes the integers of each layer, for those who build or test a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qrun.cli._base import WholeNumber, define, format_options, heading, model_argument, print_json
from qrun.cli._flow import read_feeds
from qrun.cli._options import (
    USUAL_FAMILY,
    custom_operators,
    general_options,
    input_options,
    integer_family,
    limits,
    memory_option,
    read_model,
    requantize_option,
    time_option,
    top_option,
)
from qrun.errors import CallError

if TYPE_CHECKING:
    from qrun.exporting.export import Exporter
    from qrun.ir import Array, Model
    from qrun.report.screen import Out

form, run, output = map(heading, ("Form", "Run", "Output"))


@define(
    "export",
    examples=[
        "qrun export int8.onnx -i x.npy -o DIR --as c           # C that checks itself",
        "qrun export int8.onnx -i x.npy -o DIR --as hex --layout nhwc --layers 'Conv_*'",
        "qrun export int8.onnx -i samples/ -o DIR --as raw --vectors 10",
    ],
    notes="Exit code 1: the model has no quantized layer that can be exported.",
)
@model_argument
@form(
    "--as FORM",
    "c: headers and a program that checks itself. raw: little-endian bytes. hex: for $readmemh. json: one file.",
    type=["c", "raw", "hex", "json"],
    required=True,
)
@requantize_option(form, "the layers", default=USUAL_FAMILY)
@form("--layout", "Of activations and weights: nhwc writes weights as OHWI.", type=["nchw", "nhwc"], default="nchw")
@form("--layers PATTERN", "Layers by name, operator or output, such as 'Conv_*'. Repeatable.", multiple=True)
@form(
    "-t, --tensor PATTERN",
    "Also write tensors whose name, or whose node's name, matches. Repeatable.",
    multiple=True,
)
@form("--vectors N", "Samples to write: sets of inputs, or rows of one array.", type=WholeNumber(1, 10**6), default=1)
@form("--large", "Write more than 1 GB.")
@input_options
@memory_option(run)
@time_option(run)
@output("-o, --output DIR", "The folder to write.", required=True)
@top_option(output, "Layers to list, or 'all'.")
@format_options("text", "json")
@custom_operators
@general_options(config=True)
def command(out: Out, **options: Any) -> int:
    """Write the integers of each layer, and vectors of codes, for hardware and firmware."""
    from qrun.exporting.export import Exporter, ExportOptions
    from qrun.exporting.write import ExportWriter
    from qrun.io.files import check_folder
    from qrun.ir.load import load
    from qrun.report.export import export_fields, export_sheet
    from qrun.report.sheet import print_sheet

    family = integer_family(options["requantize"])
    model = load(read_model(options["model"], options["inputs"]))
    check_folder(options["output"])
    wishes = ExportOptions(options["as"], family, options["layout"], options["layers"], options["tensor"])
    exporter = Exporter(model, wishes)
    writer = ExportWriter(exporter)
    if not exporter.is_float:
        exporter.run(_samples(model, options, out), limits(options))
        _check_size(exporter, options["large"])
    writer.save(options["output"])
    code = int(not writer.layers)
    sheet = export_sheet(exporter, writer, options["output"], options["top"])
    if options["format"] == "json":
        print_json(out, export_fields(exporter, writer), sheet.answer(code))
    else:
        print_sheet(out, sheet)
    return code


def _samples(model: Model, options: Mapping[str, Any], out: Out) -> Sequence[Mapping[str, Array]]:
    """The inputs of each sample: the first sets that -i names, or the first rows of the only one."""
    from qrun.io.sets import input_sets

    count = options["vectors"]
    sets = input_sets(model, options["inputs"])
    found = [read_feeds(model, options, out, specs).arrays for specs in sets[:count]]
    if len(sets) > 1 or not all(each.shape and isinstance(each.shape[0], str | None) for each in model.inputs):
        return found
    rows = {value.shape[0] for value in found[0].values() if value.ndim}
    if len(rows) != 1 or max(rows) <= count:
        return found
    return [{name: value[:count] for name, value in found[0].items()}]


def _check_size(exporter: Exporter, large: bool) -> None:
    """Raise CallError before more than 1 GB is written unasked."""
    from qrun.exporting.export import LARGE

    size = exporter.estimate()
    if size > LARGE and not large:
        raise CallError(
            "QR005",
            f"the export takes about {size / 1e9:.1f} GB",
            facts=[("expected", "at most 1 GB, or --large")],
            fixes=["add --large", "choose layers with --layers PATTERN", "write fewer samples with --vectors"],
        )
