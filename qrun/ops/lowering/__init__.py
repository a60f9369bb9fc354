"""Native lowerings that several operators share. A lowering turns an operator's node into operations of the native
engine, or declines it with a reason.

`kernel` defines the arguments and the result of a lowering; the other modules are lowerings by kind of operator, which
declarations name. Imported by the modules of `ops`, and by the code that runs kernels. Lowerings make the checks of the
reference kernels, share no formula with them, and name no instruction set."""
