"""The units in which a training run is measured."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["TimeUnit"]


class TimeUnit(StrEnum):
    """A unit of training time; its value is the suffix of a time string such as ``"10ep"``.

    ``TimeUnit("EP")`` and ``TimeUnit("epoch")`` find the member too: values and names are read
    in any case.
    """

    ITERATION = "iter"
    EPOCH = "ep"
    BATCH = "ba"
    SAMPLE = "sp"
    TOKEN = "tok"
    DURATION = "dur"
    """A fraction of the whole run: 0.0 at its start, 1.0 at its end."""
    SECOND = "sec"
    """Wall-clock seconds spent in training."""

    @classmethod
    def _missing_(cls, value: object) -> TimeUnit | None:
        if not isinstance(value, str):
            return None
        wanted = value.lower()
        for member in cls:
            if wanted in (member.value, member.name.lower()):
                return member
        return None
