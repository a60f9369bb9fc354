"""Hands over the integers of a quantized model: parameters and vectors of each layer, as files, or as C that checks
itself.

May be imported by `report` and `cli`. Knows models, conversions and sessions; knows no screens.
"""
