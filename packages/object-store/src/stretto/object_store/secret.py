"""A value that must not be seen."""

from __future__ import annotations

import pickle
from typing import NoReturn


class Secret:
    """Holds a secret so that no repr, error or pickle shows it.

    Args:
        value: The secret.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The secret itself; for the line that sends it, nowhere else."""
        return self._value

    def __repr__(self) -> str:
        return "Secret('***')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> NoReturn:
        raise pickle.PicklingError(
            "a store that was given its secret as an argument cannot be pickled; put the secret "
            "in an environment variable and name that instead"
        )
