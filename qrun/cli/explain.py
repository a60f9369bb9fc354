"""``qrun explain``: rules, codes, operators and topics, offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qrun.cli._base import argument, define, general_options

if TYPE_CHECKING:
    from qrun.report.screen import Out


@define(
    "explain",
    examples=["qrun explain QR301", "qrun explain QLinearConv", "qrun explain inputs"],
    notes="Topics: inputs, exit-codes, config, json. Without TOPIC: everything that can be explained.",
)
@argument("topic", about="A code, a rule name, an operator or a topic.", required=False)
@general_options()
def command(out: Out, topic: str | None) -> None:
    """Explain a rule, an operator or a topic, offline."""
    from qrun.report.explain import explain, print_topics

    if topic is None:
        print_topics(out.result)
    else:
        explain(out.result, topic, verbose=out.verbose > 0)
