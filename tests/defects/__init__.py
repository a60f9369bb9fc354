"""Defects of runtimes, as functions from a case's node to a wrong answer."""
