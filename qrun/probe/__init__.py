"""Names the requantization arithmetic of a runtime or device: a small model whose outputs tell arithmetics apart."""
