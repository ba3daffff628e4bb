"""PyTorch's own settings of its allocator, as far as they mean something here.

``PYTORCH_ALLOC_CONF`` and ``PYTORCH_CUDA_ALLOC_CONF`` hold ``key:value,key:[a:b,>:c]``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

#: What is so in any case, or is not the allocator's of device memory: neither needs a word.
_AS_IT_IS = {
    "expandable_segments": "memory is always mapped as it is needed",
}

#: Where ``garbage_collection_threshold`` can go: between the settings below and above it.
_LEAST_THRESHOLD, _MOST_THRESHOLD = 0.3, 0.9


def split(text: str) -> list[tuple[str, str]]:
    """The keys and values of one line. Commas and colons within brackets belong to the value."""
    entries, depth, begin = [], 0, 0
    for at, letter in enumerate(text + ","):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            entry = "".join(text[begin:at].split())
            begin = at + 1
            if entry:
                key, _, value = entry.partition(":")
                entries.append((key, value))
    return entries


def translated(environment: Mapping[str, str] | None = None) -> tuple[dict[str, str], list[str]]:
    """forebay's settings for what the environment says to PyTorch's allocator, and what has no meaning here.

    The second is text for people: each key with its value.
    """
    environment = os.environ if environment is None else environment
    settings: dict[str, str] = {}
    without: list[str] = []
    for variable in VARIABLES:
        for key, value in split(environment.get(variable, "")):
            if key in _AS_IT_IS or key.startswith("pinned_"):
                continue
            number = _fraction(value)
            if key == "per_process_memory_fraction" and number is not None and 0 <= number <= 1:
                settings["max_fraction"] = value
            elif (
                key == "garbage_collection_threshold"
                and number is not None
                and _LEAST_THRESHOLD < number < _MOST_THRESHOLD
            ):
                settings["pressure_moderate"] = value
            else:
                without.append(f"{key}:{value}")
    return settings, without


def _fraction(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None
