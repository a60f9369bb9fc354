"""Two sides of one comparison: runtimes, models, saved files and records, tensor by tensor, and why they differ.

May be imported by `checking` and everything above it. Knows no rule and no screen.
"""
