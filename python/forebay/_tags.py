"""Functions and coroutines under a tag: what ``@forebay.tag("name")`` makes of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ._forebay import tag

_F = TypeVar("_F", bound=Callable[..., Any])


def decorated(name: str, function: _F) -> _F:
    """The function with all it allocates under the tag of that name."""
    if not callable(function):
        raise TypeError(f"forebay.tag({name!r}) decorates a function, not {type(function).__name__}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"forebay.tag({name!r}) cannot decorate a generator, which gives control away in the middle: use "
            "`with forebay.tag(...)` inside it, between two yields"
        )
    wrapper: Any
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*arguments: Any, **words: Any) -> Any:
            with tag(name):
                return await function(*arguments, **words)

    else:

        @functools.wraps(function)
        def wrapper(*arguments: Any, **words: Any) -> Any:
            with tag(name):
                return function(*arguments, **words)

    return wrapper
