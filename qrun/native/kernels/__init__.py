"""Planners: operations with known shapes, weights and scales, each of which plans the kernel calls that compute it.

Imported by `plan` and, from above, by the operators' lowerings. An operation does not know the others of its program.
"""
