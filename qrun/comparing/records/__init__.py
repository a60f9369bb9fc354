"""Tensors of a run in a folder, with what made them: written, read back, compared, and changed models told."""
