"""``qrun convert``: writes a quantized model in another form, and says what that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qrun.cli._base import WholeNumber, define, format_options, heading, model_argument, print_json
from qrun.cli._flow import read_feeds
from qrun.cli._options import general_options, input_options, limits, memory_option, read_model, time_option
from qrun.cli.profile import Top
from qrun.errors import CallError, suggest

if TYPE_CHECKING:
    from qrun.arithmetics import Arithmetic
    from qrun.report.screen import Out

form, run, output = map(heading, ("Form", "Run", "Output"))


USUAL = "tfl-double"


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
@form("--requantize FAMILY", "The arithmetic of --to integer (qrun explain arithmetics).", show_default=USUAL)
@form("--strict", "Convert only groups whose codes are proved to stay the same for all inputs.")
@form("--fold", "Compute nodes that read only constants.")
@form("--strip", "Drop nodes and constants that no output needs.")
@form("--opset N", "Convert to this opset of ai.onnx first, by onnx's converter.", type=WholeNumber(7, 999))
@input_options
@memory_option(run)
@time_option(run)
@output("-o, --output FILE", "The model to write; large ones get FILE.data beside it.", required=True)
@output("--top N", "Groups to list, or 'all'.", type=Top(), default=20)
@format_options("text", "json")
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
        integer_family(options["requantize"] or USUAL),
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
    if options["format"] == "json":
        print_json(out, convert_fields(made.conversion, trial, files), code)
    else:
        top = None if options["top"] == "all" else options["top"]
        print_sheet(out, convert_sheet(made.conversion, trial, top))
        out.wrote(*files)
    return code


def integer_family(name: str) -> Arithmetic:
    """The arithmetic of a name. Raises CallError for an unknown one, and for one that needs floats."""
    from qrun.arithmetics import FAMILIES
    from qrun.converting.requantize import has_integer_form

    fitting = [each.name for each in FAMILIES.values() if has_integer_form(each)]
    if name in fitting:
        return FAMILIES[name]
    near = suggest(name, fitting)
    raise CallError(
        "QR005",
        f"--requantize {name}: {'it needs floats' if name in FAMILIES else 'unknown arithmetic'}",
        facts=[("expected", ", ".join(fitting))],
        fixes=[f"did you mean --requantize {near}?" if near else "qrun explain arithmetics"],
    )
