"""A format of ``qrun check``: one function of a report and of what was asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from qrun.declare.frozen import frozen
from qrun.declare.registry import Registry

F = TypeVar("F", bound=Callable[..., Any])


@frozen
class Asked:
    """What a call wants of a report besides its format.

    argv:  the call's words; notes: findings of level note too; quiet: of formats for people, findings only.
    """

    argv: Sequence[str] = ()
    notes: bool = False
    quiet: bool = False


@frozen
class CheckFormat:
    """A declared format. draws: whether it draws on a Screen; others make a text."""

    name: str
    suffix: str
    unencodable: str
    make: Callable[..., Any]
    draws: bool


FORMATS: Registry[str, CheckFormat] = Registry("qrun.report.formats")


def check_format(name: str, *, suffix: str = "", unencodable: str = "backslashreplace") -> Callable[[F], F]:
    """Declare a format: a function ``(report, asked)`` that returns its text, or ``(screen, report, asked)`` that
    draws.

    suffix: of the files that ``-o`` writes in this format. unencodable: how it writes what a stream's encoding has not,
    as in ``str.encode``.
    """

    def declare(make: F) -> F:
        draws = "screen" in inspect.signature(make).parameters
        FORMATS.declared[name] = CheckFormat(name, suffix, unencodable, make, draws)
        return make

    return declare
