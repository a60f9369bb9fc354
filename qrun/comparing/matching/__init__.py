"""Matches the tensors of a float model and the model quantized from it (`match`), by graph, operators and similar
constants."""
