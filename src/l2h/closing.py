"""The ``with`` statement for objects that have to be closed."""

from typing import Self


class Closing:
    """Base of classes that are closed at the end of a ``with`` block.

    Example:
        >>> class Tap(Closing):
        ...     def close(self) -> None:
        ...         print("closed")
        >>> with Tap():
        ...     print("open")
        open
        closed
    """

    def close(self) -> None:
        """Release what is open; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
