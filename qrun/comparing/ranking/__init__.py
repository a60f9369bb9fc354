"""Which nodes of a quantized model cost accuracy, and why: measured alone, by their effects, in groups and as lists."""
