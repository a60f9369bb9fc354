"""The exceptions of the native engine."""


class Declined(ValueError):
    """The native engine does not do this; str() is the reason, in a few words for the user."""


class Unplanned(Exception):
    """An array from outside does not have the planned type or shape."""


class Late(Exception):
    """A run exceeds its time limit. item: the one that would have run next."""

    def __init__(self, item: int) -> None:
        super().__init__(f"before item {item}")
        self.item = item


class Undecided(Exception):
    """A kernel could not decide a result, such as one so near to a tie that its rounding is uncertain."""
