"""The command line of qrun."""

from qrun.cli._main import main

__all__ = ["main"]
