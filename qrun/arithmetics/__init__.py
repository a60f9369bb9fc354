"""The arithmetics of integer engines: how each turns an int32 sum into a code (`families`), and how it adds, multiplies
and averages codes (`elementwise`).

May be imported by everything above `ir`. Knows no operators.
"""

from qrun.arithmetics.elementwise import ENGINES, Encoding, IntegerEngine, average_of_codes
from qrun.arithmetics.families import FAMILIES
from qrun.arithmetics.family import Arithmetic, Scales

__all__ = ["ENGINES", "FAMILIES", "Arithmetic", "Encoding", "IntegerEngine", "Scales", "average_of_codes"]
