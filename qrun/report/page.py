"""A page of ``qrun explain``."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

from qrun.declare.frozen import frozen
from qrun.report.screen import Screen


@frozen
class Page:
    """The page of one topic: a function that draws it, and its JSON fields."""

    show: Callable[[Screen], None]
    fields: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The first line of the page."""
        text = io.StringIO()
        self.show(Screen(text, terminal=False, width=None, color=False))
        return text.getvalue().partition("\n")[0].strip()
