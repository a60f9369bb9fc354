"""The command line: parses options, makes one call into the packages below, and returns one exit code.

Imported by `__main__` and the installed commands only. It knows no operator, no kernel and no layout of a screen or a
document: `report` has these.
"""

from qrun.cli._main import command, main

__all__ = ["command", "main"]
