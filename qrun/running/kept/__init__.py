"""What is made of a model once and kept on disk for other processes: parsed graphs, plans, native programs, findings.

The line through it: `images` finds what is kept of a file, `models` its parsed graph, `programs` its native programs;
all of it is plain values (`packed`). May be imported by `running` and everything above it.
Trusts nothing that it reads.
"""
