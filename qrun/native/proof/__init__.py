"""Proofs that a cheap arithmetic equals the exact one for all inputs that can occur, and the search for its constants.

Imported by `kernels`. It knows no memory layout and no thread.
"""
