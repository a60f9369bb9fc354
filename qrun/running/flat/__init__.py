"""Flat plans: the nodes of the graphs inside If, Loop and Scan stand in place of these nodes,
so that one native program can run all of them.

The line through it: `flattened` walks a plan and adds `steps`: for a loop of few turns those of every turn (`loops`),
else one step that makes all turns (`repeats`, with its operation in `turns`); `origins` maps events back to the nodes.
Imported by `running` where a model has such nodes.
"""
