"""Operations whose shapes, weights and scales are known: each makes the kernel calls that compute it.

Imported by `plan` and, from above, by the operators' lowerings. It knows no other operation of a program.
"""
