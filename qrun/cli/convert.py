"""``qrun convert``: writes a quantized model in another form, and says what that changes."""

from __future__ import annotations

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
    from qrun.report.screen import Out

form, run, output = map(heading, ("Form", "Run", "Output"))


@define(
    "convert",
    examples=[
        "qrun convert qdq.onnx -o int.onnx --to qoperator    # QLinearConv and its like",
        "qrun convert int.onnx -o qdq.onnx --to qdq          # the reverse",
        "qrun convert m.onnx -o n.onnx --to qoperator --strict -i x.npy",
    ],
    notes="Both models are run on the inputs and compared group by group. Exit code 1: nothing to convert, or a difference "
    "that the proof excludes.",
)
@model_argument
@form(
    "--to FORM",
    "qoperator: integer operators. qdq: groups of DequantizeLinear, operator and QuantizeLinear. integer: ConvInteger "
    "and MatMulInteger, requantized by integers.",
    type=["qoperator", "qdq", "integer"],
)
@requantize_option(form, "--to integer", show_default=USUAL_FAMILY)
@form("--strict", "Convert only groups whose codes are proved to stay the same for all inputs.")
@form("--fold", "Compute nodes that read only constants.")
@form("--strip", "Drop nodes and constants that no output needs.")
@form("--opset N", "Convert to this opset of ai.onnx first, by onnx's converter.", type=WholeNumber(7, 999))
@input_options
@memory_option(run)
@time_option(run)
@output("-o, --output FILE", "The model to write; large ones get FILE.data beside it.", required=True)
@top_option(output, "Groups to list, or 'all'.")
@format_options("text", "json")
@custom_operators
@general_options(config=True)
def command(out: Out, **options: Any) -> int:
    """Write a quantized model in another form, and say what that changes."""
    from qrun.converting.convert import ConversionOptions, Converter
    from qrun.converting.trial import Trial
    from qrun.io.inputs import files_read
    from qrun.io.outputs import check_trace
    from qrun.report.convert import convert_fields, convert_sheet
    from qrun.report.sheet import print_sheet

    wishes = ConversionOptions(
        options["to"] or "",
        integer_family(options["requantize"] or USUAL_FAMILY),
        options["strict"],
        options["fold"],
        options["strip"],
        options["opset"] or 0,
    )
    if not (wishes.form or wishes.fold or wishes.strip or wishes.opset):
        raise CallError("QR005", "qrun convert needs --to, --fold, --strip or --opset", fixes=["qrun convert -h"])
    if options["requantize"] and wishes.form != "integer":
        raise CallError("QR005", "--requantize goes with --to integer", fixes=["--to integer", "omit --requantize"])
    made = Converter(read_model(options["model"], options["inputs"]), wishes)
    target = options["output"]
    for name in (target, f"{target}.data") if made.model.external_files else (target,):
        check_trace(name, files_read(made.model, options["inputs"]))
    trial, files = Trial((), ()), list[str]()
    if made.conversion.groups or not wishes.form:
        feeds = read_feeds(made.model, options, out)
        trial = made.try_both(feeds.arrays, limits(options))
        files = made.save(target)
    code = int(not files or bool(trial.broken))
    sheet = convert_sheet(made.conversion, trial, options["top"])
    if options["format"] == "json":
        print_json(out, convert_fields(made.conversion, trial, files), sheet.answer(code))
    else:
        print_sheet(out, sheet)
        out.wrote(*files)
    return code
