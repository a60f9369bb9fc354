"""The one exception of the native engine."""


class Declined(ValueError):
    """The native engine does not do this; str() is the reason, in a few words for the user."""
