"""Memory and history in the form of PyTorch's snapshots."""

from __future__ import annotations

import collections
import itertools
import sys
import threading
from typing import Any


class Frames:
    """Where in the program blocks were asked for, of the last ``most`` requests: each place once, with a number.

    A ring of events has at most as many requests in it, so a place that the ring still names is here, but for one of a
    thread that was stopped between asking for the number and recording it, for as long as ``most`` requests took.
    """

    def __init__(self, most: int) -> None:
        # A garbage collection may begin anywhere, and ask for memory on the same thread.
        self._lock = threading.RLock()
        #: The numbers of the last requests, the oldest first.
        self._last: collections.deque[int] = collections.deque()
        self._most = most
        #: Each place with how many of the last requests came from it.
        self._places: dict[int, tuple[Any, ...]] = {}
        self._counts: dict[int, int] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._serial = itertools.count(1)

    def __len__(self) -> int:
        """How many places are kept."""
        return len(self._places)

    def here(self, depth: int) -> int:
        """The number of the place of whoever called whoever calls this."""
        frame = sys._getframe(depth)
        place = []
        while frame is not None:
            place.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        key = tuple(place)
        gone = None
        with self._lock:
            number = self._numbers.get(key)
            if number is None:
                number = next(self._serial)
                self._numbers[key], self._places[number], self._counts[number] = number, key, 0
            self._counts[number] += 1
            self._last.append(number)
            if len(self._last) > self._most:
                gone = self._forget(self._last.popleft())
        # Apart from the lock: what ends with it may free memory, and come back here.
        del gone
        return number

    def _forget(self, number: int) -> tuple[Any, ...] | None:
        """Takes one request off a place; gives the place where it was the last."""
        self._counts[number] -= 1
        if self._counts[number]:
            return None
        del self._counts[number]
        key = self._places.pop(number)
        del self._numbers[key]
        return key

    def of(self, number: int) -> list[dict[str, Any]]:
        """The frames of a place, the innermost first, as PyTorch's viewer has them."""
        with self._lock:
            place = self._places.get(number, ())
        return [{"name": code.co_name, "filename": code.co_filename, "line": line} for code, line in place]


def history_of(recorded: list[list[Any]], frames: Frames) -> list[dict[str, Any]]:
    """What was recorded of a GPU, as PyTorch has it."""
    return [entry for record in recorded for entry in _entries(record, frames)]


def _entries(record: list[Any], frames: Frames) -> list[dict[str, Any]]:
    happened, address, size, stream, time, place = record
    entry = {"addr": address, "size": size, "stream": stream, "time_us": time, "compile_context": "N/A"}
    if happened == "oom":
        # What the device had left stands where the address does.
        return [{**entry, "action": "oom", "device_free": address, "frames": frames.of(place)}]
    if happened == "alloc":
        return [{**entry, "action": "alloc", "frames": frames.of(place)}]
    # In the order of its stream it is free at once.
    return [{**entry, "action": action, "frames": []} for action in ("free_requested", "free_completed")]


def segments_of(
    device: int, told: dict[str, Any], recorded: list[list[Any]], frames: Frames
) -> list[dict[str, Any]]:
    """The memory of a GPU, that of graphs too, with every block where it lies."""
    places = {record[1]: record[5] for record in recorded if record[0] == "alloc"}
    segments = _segments(device, told, (0, 0), places, frames)
    for graph in told["graphs"]:
        segments += _segments(device, graph, (graph["first"], graph["second"]), places, frames)
    return segments


def _segments(
    device: int, told: dict[str, Any], pool: tuple[int, int], places: dict[int, int], frames: Frames
) -> list[dict[str, Any]]:
    segments = []
    blocks = iter(sorted(told["blocks"]))
    block = next(blocks, None)
    for start, size in sorted(told["spans"]):
        end, at = start + size, start
        within: list[dict[str, Any]] = []
        while block is not None and block[0] < end:
            address, length, requested, tag = block
            if address > at:
                within.append(_free_piece(at, address - at))
            within.append(
                {
                    "address": address,
                    "size": length,
                    "requested_size": requested,
                    "state": "active_allocated",
                    "frames": frames.of(places.get(address, 0)),
                    "user_metadata": tag,
                }
            )
            at = address + length
            block = next(blocks, None)
        if at < end:
            within.append(_free_piece(at, end - at))
        live = [piece for piece in within if piece["state"] == "active_allocated"]
        in_blocks = sum(piece["size"] for piece in live)
        segments.append(
            {
                "device": device,
                "address": start,
                "total_size": size,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": pool,
                "is_expandable": True,
                "allocated_size": in_blocks,
                "active_size": in_blocks,
                "requested_size": sum(piece["requested_size"] for piece in live),
                "frames": [],
                "blocks": within,
            }
        )
    return segments


def _free_piece(address: int, size: int) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
