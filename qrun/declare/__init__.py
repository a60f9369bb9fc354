"""How the rest is declared, at little cost to a process that starts.

`frozen` makes immutable records; a `Registry` finds what the modules of a package declare, and imports only those asked for.

May be imported by everything. Knows nothing of qrun.
"""
