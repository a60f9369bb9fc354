"""Arrays in files and on the command line: inputs read and fitted to a model, outputs written.

May be imported by `running` and everything above it. Knows no operator, no plan and no backend.
"""
