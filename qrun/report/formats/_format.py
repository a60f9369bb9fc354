"""The declaration of a format of ``qrun check``: one function of the report and of the call's options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from qrun.declare.frozen import frozen
from qrun.declare.registry import Registry

F = TypeVar("F", bound=Callable[..., Any])


@frozen
class Asked:
    """The options of a call that a format needs.

    argv:  the command line; notes: include findings of level note. Only formats for people look at the others: quiet:
    print only findings; statistics: print how often each rule was found.
    """

    argv: Sequence[str] = ()
    notes: bool = False
    quiet: bool = False
    statistics: bool = False


@frozen
class CheckFormat:
    """A declared format. draws: whether `make` draws on a Screen; otherwise it returns a text."""

    name: str
    suffix: str
    unencodable: str
    make: Callable[..., Any]
    draws: bool


FORMATS: Registry[str, CheckFormat] = Registry("qrun.report.formats")


def check_format(name: str, *, suffix: str = "", unencodable: str = "backslashreplace") -> Callable[[F], F]:
    """Declares a format: a function ``(report, asked)`` that returns its text, or ``(screen, report, asked)`` that
    draws.

    suffix: of the files that ``-o`` writes in this format. unencodable: how characters that a stream's encoding lacks
    are written, as in ``str.encode``.
    """

    def declare(make: F) -> F:
        draws = "screen" in inspect.signature(make).parameters
        FORMATS.declared[name] = CheckFormat(name, suffix, unencodable, make, draws)
        return make

    return declare
