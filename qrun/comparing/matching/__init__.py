"""Which tensors of a float model and of the model quantized from it are the same:
`match`, by graph, operators and likeness."""
