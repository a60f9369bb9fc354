"""The options that every command has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from qrun.cli._base import Call, Function, option, stacked
from qrun.cli._config import config_option

if TYPE_CHECKING:
    from qrun.report.screen import Out


def general_options(*, config: bool = False) -> Callable[[Function], Function]:
    """``-q``, ``-v``, ``--color`` (and ``--config``); the function receives them as ``out``, an `Out`."""
    options = [
        option("-q", "--quiet", is_flag=True, group="General", help="Print the result only."),
        option("-v", "--verbose", count=True, group="General", help="More detail; -vv adds tracebacks."),
        option("--color", type=["auto", "always", "never"], default="auto",
               group="General", help="NO_COLOR and FORCE_COLOR are honoured too."),
    ]  # fmt: skip
    if config:
        options.append(config_option)

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def with_out(*args: Any, quiet: bool, verbose: int, color: str, **kwargs: Any) -> Any:
            from qrun.report.screen import Out

            call = click.get_current_context().ensure_object(Call)
            call.verbose, call.color = verbose, color
            out: Out = Out.open(color=color, quiet=quiet, verbose=verbose)
            for note in click.get_current_context().meta.get("qrun.notes", ()):
                out.note(note)
            return function(*args, out=out, **kwargs)

        return stacked(*options)(with_out)

    return decorate
