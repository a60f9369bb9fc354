"""``qrun ops``: what qrun runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qrun.cli._base import argument, define, format_options, print_json
from qrun.cli._options import general_options

if TYPE_CHECKING:
    from qrun.report.screen import Out


@define(
    "ops",
    examples=["qrun ops", "qrun ops QLinear", "qrun ops --json"],
    notes="Types: u8 uint8, i8 int8, f32 float32, bf16 bfloat16, f8 the float8 types. Exit code 1 if NAME fits nothing.",
)
@argument("name", about="Only operators with this in their name.", required=False, shell_complete=None)
@format_options("text", "json")
@general_options()
def command(out: Out, name: str | None, format: str) -> int:
    """List supported operators, versions and types."""
    from qrun.report.ops import matching, ops_fields, print_ops, supported, why_missing

    known = supported()
    shown = matching(known, name) if name else known
    code = 0 if shown else 1
    if not shown:
        out.messages.wrapped("", "  ", why_missing(name or ""))
    if format == "json":
        print_json(out, ops_fields(shown, len(known)), code)
    else:
        print_ops(out.result, shown, len(known), name or "")
    return code
