"""Native lowerings that several operators share: an operator's node becomes operations of the native engine,
or is declined.

`kernel` has what a lowering is given and returns; the others are lowerings by kind of operator, which declarations
name. Imported by the modules of `ops`, and by what runs kernels. Makes the checks of the reference kernels, shares no
formula with them, and names no instruction set.
"""
