"""Reads arrays from files and the command line and checks them against a model's inputs; writes outputs.

`files` writes files atomically.

May be imported by `running` and everything above it. Knows no operators, plans or backends.
"""
