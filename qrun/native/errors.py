"""The exceptions of the native engine."""


class Declined(ValueError):
    """The native engine does not do this; str() is the reason, in a few words for the user."""


class Unplanned(Exception):
    """An array that came from elsewhere has not the planned type or shape."""


class Late(Exception):
    """A run takes longer than it may. item: what would have been next."""

    def __init__(self, item: int) -> None:
        super().__init__(f"before item {item}")
        self.item = item


class Undecided(Exception):
    """A kernel met a result so near to a tie that its arithmetic does not tell how it is rounded."""
