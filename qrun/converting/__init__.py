"""Rewrites a quantized model into another form, as a file: QDQ groups into integer operators and back.

Each rewritten group carries a verdict: whether its codes are those of the group as written, for all inputs. May be
imported by `report` and `cli`. Knows models, passes and sessions; knows no screens.
"""
