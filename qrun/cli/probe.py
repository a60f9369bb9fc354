"""``qrun probe``: names the requantization arithmetic of a runtime or device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qrun.cli._base import Choice, define, format_options, heading, print_json
from qrun.cli._options import Distance, general_options
from qrun.errors import CallError

if TYPE_CHECKING:
    from qrun.probe.dumps import FormReading
    from qrun.report.screen import Out

run, output = map(heading, ("Run", "Output"))
FORMS = ("qlinear", "qdq", "qdq-uint8", "matmul", "shifts", "symmetric")


@define(
    "probe",
    examples=[
        "qrun probe --runtime ort     # run the probe in a runtime",
        "qrun probe -o probe/         # write it, to run it on a device",
        "qrun probe --read dump.npz   # name the arithmetic from a device's outputs",
    ],
    notes="Runtimes are those of qrun conform. qrun explain arithmetics lists the known families.",
)
@run("--runtime NAME", "Run the probe in this runtime or program (cmd: or batch:).")
@run("--read DUMP", "Read the outputs of a device, in any form of qrun explain dumps.")
@run("--form NAME", "Only this form of the probe.", type=Choice(FORMS), show_default="all; of a dump, by its types")
@run("--python PATH", "Run the runtime in this Python.", show_default="this one")
@run("--timeout S", "Seconds after which a form counts as hung.", type=Distance(0, min_open=True), default=120.0)
@output("-o, --output DIR", "Write the probe's models, their inputs and a README.")
@format_options("text", "json")
@general_options()
def command(
    out: Out, runtime: str | None, read: str | None, form: str | None, python: str | None, timeout: float,
    output: str | None, format: str,
) -> int:  # fmt: skip
    """Name the requantization arithmetic of a runtime or device."""
    given = [name for name, value in (("--runtime", runtime), ("--read", read), ("-o", output)) if value]
    if len(given) != 1:
        raise CallError(
            "QR005",
            "qrun probe needs one of --runtime, --read and -o" + (f", not {' and '.join(given)}" if given else ""),
            fixes=["qrun probe --runtime ort", "qrun probe -h"],
        )
    if output:
        return _write(output, out)
    subject, found = _found(runtime, read or "", form or "", python or "", timeout)
    from qrun.report.probe import probe_fields, probe_sheet
    from qrun.report.sheet import print_sheet

    code = int(not any(each.reading is not None and each.reading.named for each in found))
    sheet = probe_sheet(subject, found)
    if format == "json":
        print_json(out, probe_fields(subject, found), sheet.answer(code))
    else:
        print_sheet(out, sheet)
    return code


def _write(folder: str, out: Out) -> int:
    from qrun.probe.models import write

    for path in write(Path(folder)):
        out.result.line(str(path))
    out.note(f"convert one of these for the device, run it, save its outputs: see {Path(folder) / 'README.md'}")
    return 0


def _found(runtime: str | None, dump: str, form: str, python: str, timeout: float) -> tuple[str, list[FormReading]]:
    """The subject and what each form says."""
    from qrun.conform.runtimes import runtime as find
    from qrun.probe.dumps import read_dump, run_forms

    if not runtime:
        return dump, [read_dump(dump, form)]
    chosen = find(runtime)
    version, found = run_forms(chosen, (form,) if form else FORMS, python, timeout)
    name, comma, how = chosen.label.partition(", ")
    return f"{name} {version}{comma}{how}".strip(), found
