"""Numeric functions as sequences of single operations, written once for both backends.

They take vectors of generated code (native/emit/values.py), or `Lanes`, numpy's arrays with the same methods. So both
backends compute the same numbers from the same constants, in the same order.

May be imported by `native` and `ops`, and everything above. Knows no operator and no instruction set.
"""
