"""Comparisons of two runtimes, models, saved files or records: tensor by tensor, with the cause of each difference.

May be imported by `checking` and everything above it. Knows no rule and no screen.
"""
