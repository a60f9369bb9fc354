"""Results for a model, kept on disk for other processes: parsed graphs, plans, native programs, findings.

`images` finds the results for a file, `models` holds its parsed graph, `programs` its native programs; all of them are
plain values (`packed`). May be imported by `running` and everything above it. Trusts nothing that it reads.
"""
