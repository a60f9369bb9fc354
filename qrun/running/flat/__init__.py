"""Plans in which the nodes of graphs inside If, Loop and Scan stand in place of these,
so that one native program has all.

The line through it: `flattened` walks a plan and adds `steps`, of few turns those of each (`loops`), of others one step
that makes all (`repeats`, and `turns` as its operation); `origins` tells what happened at the nodes of the file.
Imported by `running` where a model has such nodes.
"""
