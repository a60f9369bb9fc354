"""Readers for the tensors that devices and other tools write: one tensor, its name, and what the file says about it.

May be imported by everything above `documents`. It knows files; it knows no model: which tensor of a model an array is,
`qrun.comparing.mapping` decides.
"""

from qrun.dumps.read import Dump, read_dump
from qrun.dumps.tensor import DumpTensor

__all__ = ["Dump", "DumpTensor", "read_dump"]
