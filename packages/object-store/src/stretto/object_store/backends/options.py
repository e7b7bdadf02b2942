"""Options that a back end does not know are refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from stretto.object_store.errors import InvalidUrlError


def check_options(accepts: Callable[..., Any], options: Mapping[str, object], where: str) -> None:
    """Refuse options that a function has no keyword for.

    Args:
        accepts: Its keyword-only parameters are the options.
        options: What the caller gave.
        where: The scheme or back end, for the message.

    Raises:
        InvalidUrlError: An option is unknown; the message lists the known ones.
    """
    parameters = inspect.signature(accepts).parameters.values()
    known = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    unknown = sorted(set(options) - known)
    if unknown:
        raise InvalidUrlError(
            f"{where} does not know the option{'s' * (len(unknown) > 1)} {', '.join(unknown)}; "
            f"known: {', '.join(sorted(known)) or 'none'}"
        )
