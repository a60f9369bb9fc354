"""MT19937 from its publication (Matsumoto and Nishimura 1998, initialized as of 2002),
and the numbers that are made of it."""

from __future__ import annotations

import math


class Mersenne:
    """The generator of a whole seed."""

    def __init__(self, seed: int) -> None:
        self.state = [seed % 2**32]
        for place in range(1, 624):
            last = self.state[-1]
            self.state.append((1812433253 * (last ^ (last >> 30)) + place) % 2**32)
        self.place = 624
        self.held: float | None = None

    def word(self) -> int:
        if self.place == 624:
            self._turn()
        y = self.state[self.place]
        self.place += 1
        y ^= y >> 11
        y ^= (y << 7) & 0x9D2C5680
        y ^= (y << 15) & 0xEFC60000
        return y ^ (y >> 18)

    def _turn(self) -> None:
        for i in range(624):
            y = (self.state[i] & 0x80000000) | (self.state[(i + 1) % 624] & 0x7FFFFFFF)
            self.state[i] = self.state[(i + 397) % 624] ^ (y >> 1) ^ (0x9908B0DF if y & 1 else 0)
        self.place = 0

    def uniform(self) -> float:
        """53 bits, in [0, 1)."""
        high, low = self.word() >> 5, self.word() >> 6
        return (high * 2**26 + low) / 2**53

    def normal(self) -> float:
        """By the polar method, two at a time."""
        if self.held is not None:
            made, self.held = self.held, None
            return made
        while True:
            a, b = 2 * self.uniform() - 1, 2 * self.uniform() - 1
            square = a * a + b * b
            if 0 < square < 1:
                break
        factor = math.sqrt(-2 * math.log(square) / square)
        self.held = factor * a
        return factor * b
