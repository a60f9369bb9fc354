"""The command line: options in, one call into the packages below, one exit code out.

Imported by `__main__` and the installed commands only. Knows no operator, no kernel and no layout of a screen or a
document: `report` has these.
"""

from qrun.cli._main import command, main

__all__ = ["command", "main"]
