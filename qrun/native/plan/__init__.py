"""Programs: in which order operations run, where their operands lie in one block of memory, which calls wait for which.

Imported by those who use the engine. It knows no arithmetic.
"""
