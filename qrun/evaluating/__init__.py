"""Models over many inputs: samples, metrics with their intervals, workers, and results that outlive an interruption.

Imported by `cli` and `report`. It runs models through `running` and `peers`, and knows no screens or options: whoever
calls it gives samples, and gets an `Evaluation`.
"""
