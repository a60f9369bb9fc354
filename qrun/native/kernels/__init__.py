"""Planners: operations with known shapes, weights and scales, each of which plans the kernel calls that compute it.

Imported by `plan` and, from above, by the operators' lowerings. An operation knows no other operation of its program.
"""
