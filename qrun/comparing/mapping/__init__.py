"""Maps the tensors of a dump to those of a model: how one is read as the other, which pairs to propose, and names.json.

Used by `qrun.comparing.dumped`. Nothing here runs a model: the values to compare with are given.
"""
