"""Names the requantization arithmetic of a runtime or device: a small model whose outputs tell arithmetics apart.

Imported by the command and its screens. Knows no operators: it writes models, runs them through qrun.conform's runners,
and compares codes with those of qrun.arithmetics.
"""
