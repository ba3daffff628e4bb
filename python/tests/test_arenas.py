"""Arenas: parts are refused once they were taken back."""

from __future__ import annotations

import gc

import pytest

import forebay


def test_parts_lie_one_after_another_and_come_back(pool):
    with pool.arena("1MiB") as arena:
        one, two = arena.allocate(1000), arena.allocate(1000)
        assert two.address == one.address + 1024
        one.fill(1)
        two.fill(2)
        assert set(one.to_bytes()) == {1} and set(two.to_bytes()) == {2}
        arena.reset()
        again = arena.allocate(1000)
        assert again.address != 0
        assert arena.usage() == {"used": 1000, "available": (1 << 20) - 1000, "capacity": 1 << 20,
                                 "high_water": 2024, "chunks": 1}
        with arena.allocate(100, alignment=4096) as aligned:
            assert aligned.address % 4096 == 0
    assert pool.statistics()["live_bytes"] == 0


def test_what_was_taken_back_is_refused(pool):
    arena = pool.arena("64KiB")
    early = arena.allocate(100)
    place = arena.checkpoint()
    late = arena.allocate(100)
    arena.rewind(place)
    assert early.address
    for use in (lambda: late.address, lambda: late.to_bytes(), lambda: late.fill(1), lambda: late.view(),
                lambda: memoryview(late)):
        with pytest.raises(forebay.LapsedError, match="freed by a reset or rewind"):
            use()
    arena.rewind(place)
    arena.reset()
    with pytest.raises(forebay.LapsedError):
        early.to_bytes()
    with pytest.raises(forebay.LapsedError):
        arena.rewind(place)
    arena.close()
    arena.close()
    for use in (lambda: arena.allocate(1), lambda: arena.reset(), lambda: early.to_bytes(), lambda: arena.usage()):
        with pytest.raises(forebay.ClosedError, match="the arena was closed"):
            use()
    assert "closed" in repr(arena)


def test_views_hold_an_arena_where_it_is(host):
    arena = host.arena("64KiB")
    part = arena.allocate(100)
    memory = memoryview(part)
    for back in (arena.reset, arena.close, lambda: arena.rewind(arena.checkpoint())):
        with pytest.raises(forebay.InUseError, match="view of the arena"):
            back()
    memory[0] = 7
    memory.release()
    arena.reset()
    with pytest.raises(forebay.LapsedError):
        memoryview(part)
    arena.close()


def test_a_part_outlives_the_name_of_its_arena(host):
    arena = host.arena("64KiB")
    part = arena.allocate(100)
    del arena
    gc.collect()
    part.fill(3)
    assert set(part.to_bytes()) == {3}
    part.free()
    with pytest.raises(forebay.ClosedError):
        part.free()
    del part
    gc.collect()
    assert host.statistics()["live_bytes"] == 0


def test_an_arena_grows_only_where_it_may(pool):
    with pool.arena("64KiB") as arena, pytest.raises(forebay.OutOfMemoryError, match="arena"):
        arena.allocate("1MiB")
    with pool.arena("64KiB", most="4MiB") as arena:
        assert arena.allocate("1MiB").size == 1 << 20
        assert arena.usage()["chunks"] == 2
        with pytest.raises(forebay.OutOfMemoryError):
            arena.allocate("8MiB")
    with pytest.raises(forebay.OutOfMemoryError):
        forebay.Pool(pool.device, max_bytes="2MiB").arena("8MiB")


def test_checkpoints_are_of_one_arena(host):
    with host.arena(4096) as one, host.arena(4096) as two:
        with pytest.raises(forebay.InvalidError, match="use it there"):
            two.rewind(one.checkpoint())
        with pytest.raises(TypeError):
            one.rewind(3)
