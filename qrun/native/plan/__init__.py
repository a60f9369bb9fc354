"""Programs: the order of operations, the place of their operands in one block of memory, the barriers between calls.

Imported by users of the engine. It knows no arithmetic.
"""
