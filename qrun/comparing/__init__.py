"""Comparisons of two runtimes, models, saved files or records: tensor by tensor, with the cause of each difference.

`checking` and the packages above it may import this one. It knows no rule and no screen.
"""
