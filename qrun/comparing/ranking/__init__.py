"""Ranks the nodes of a quantized model by the accuracy they cost, finds out why, and proposes corrections."""
