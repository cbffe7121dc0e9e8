"""What a user is told about their data."""


class DataError(ValueError):
    """A mistake in the user's data or in how it was named: what was seen, where and what to do, in one line."""
