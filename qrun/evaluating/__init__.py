"""Evaluates models over many samples: metrics with intervals, worker processes, results that survive an interruption.

Imported by `cli` and `report`. It runs models through `running` and `peers`, and knows no screens or options: a caller
passes samples and gets an `Evaluation`.
"""
