"""Answers as a notebook shows them: what the terminal would, as HTML."""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

from qrun.checking.rules import Finding
from qrun.comparing.accuracy import Accuracy
from qrun.comparing.comparison import Comparison
from qrun.ir import Model
from qrun.report.screen import Out, Screen
from qrun.running.profiling import Profile

WIDTH = 120
OPTIONS = re.compile(r" {3}--[a-z].*$", re.M)
"""What could be typed to see more, on the command line."""


def html_of(value: Any) -> str:
    """One element for an answer: Model, Profile, Finding, Comparison or Accuracy."""
    return f'<pre style="white-space: pre; overflow-x: auto">{escape(text_of(value))}</pre>'


def text_of(value: Any) -> str:
    """What the terminal shows of it, in 120 columns."""
    stream = io.StringIO()
    screen = Screen(stream, terminal=False, width=WIDTH, color=False)
    if isinstance(value, Model):
        from qrun.ir.infer import with_inferred
        from qrun.ops import expansion
        from qrun.report.inspect import print_overview
        from qrun.report.modelfacts import ModelFacts

        known = (
            value
            if value.path is None or not value.path.is_file()
            else with_inferred(value, str(value.path), expansion)
        )
        print_overview(screen, ModelFacts(known))
    elif isinstance(value, Finding):
        from qrun.report.message import print_finding

        print_finding(screen, value, "")
    else:
        from qrun.report.sheet import print_sheet

        print_sheet(Out(screen, screen), _sheet(value, screen))
    return OPTIONS.sub("", stream.getvalue().rstrip("\n"))


def _sheet(value: Any, screen: Screen) -> Any:
    if isinstance(value, Profile):
        from qrun.io.inputs import Feeds
        from qrun.report.profile import profile_sheet
        from qrun.report.profilerows import ProfileReport

        backend = "native" if any(event.backend == "native" for event in value.last.events) else "reference"
        return profile_sheet(ProfileReport(value, Feeds(), 0, backend, "exact"), screen)
    if isinstance(value, Comparison):
        from qrun.report.compare import comparison_sheet

        return comparison_sheet(value, 10)
    assert isinstance(value, Accuracy)
    from qrun.report.accuracy import accuracy_sheet

    return accuracy_sheet(value, 10)
