"""The requantization arithmetics of integer engines: how each turns an int32 sum into a code. See `families`.

May be imported by everything above `ir`. Knows no operators.
"""

from qrun.arithmetics.families import FAMILIES
from qrun.arithmetics.family import Arithmetic, Scales

__all__ = ["FAMILIES", "Arithmetic", "Scales"]
