"""Arrays in files and on the command line: inputs read and fitted to a model, outputs written.

`files` writes whole files or none.

May be imported by `running` and everything above it. Knows no operator, no plan and no backend.
"""
