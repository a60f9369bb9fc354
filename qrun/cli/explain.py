"""``qrun explain``: rules, codes, operators and topics, offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qrun.cli._base import argument, define, format_options, print_json
from qrun.cli._options import general_options

if TYPE_CHECKING:
    from qrun.report.screen import Out


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from qrun.report.explain import names

    return [name for name in names() if name.lower().startswith(incomplete.lower())]


@define(
    "explain",
    examples=["qrun explain QR301", "qrun explain QLinearConv", "qrun explain inputs"],
    notes="Topics: inputs, exit-codes, config, environment, completion, json, numerics, causes, conform, roof. Without TOPIC: everything that can be explained.",
)
@argument("topic", about="A code, a rule, a cause, an operator or a topic.", required=False, shell_complete=_complete)
@format_options("text", "json")
@general_options()
def command(out: Out, topic: str | None, format: str) -> None:
    """Explain a rule, an operator or a topic, offline."""
    from qrun.report.explain import page

    found = page(topic, verbose=out.verbose > 0)
    if format == "json":
        print_json(out, found.fields, 0)
    else:
        found.show(out.result)
