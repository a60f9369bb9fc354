"""Functions of numbers as sequences of single operations, written once for both backends.

What they are given is a vector of generated code (native/emit/values.py), or `Lanes`, numpy's arrays with the same
methods. So both make the same numbers of the same constants, in the same order.

May be imported by `native` and `ops`, and everything above. Knows no operator and no instruction set.
"""
