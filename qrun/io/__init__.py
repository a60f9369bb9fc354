"""Reads arrays from files and the command line and checks them against a model's inputs; writes outputs.

`files` writes files atomically.

`running` and everything above it may import this package. It knows no operators, plans or backends.
"""
