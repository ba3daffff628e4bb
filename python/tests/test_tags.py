"""Tags: for whom memory is, by task and by call."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import subprocess
import sys
import threading

import pytest

import forebay


def tags(pool):
    """Live bytes by tag."""
    return {row["tag"]: row["live_bytes"] for row in pool.statistics()["tags"]}


def test_tasks_that_take_turns_have_their_own(host):
    """With tags of threads the inner one was left on the wrong stack, and the memory went to whoever entered last."""
    kept = []

    async def work(name, size, turns):
        with forebay.tag(name):
            for _ in range(3):
                await turns.wait()
                kept.append(host.allocate(size))
                kept.append(forebay.empty(size, "u1", device=host))
                await asyncio.sleep(0)

    async def untagged(turns):
        await turns.wait()
        for _ in range(3):
            kept.append(host.allocate(7 * 512))
            await asyncio.sleep(0)

    async def main():
        turns = asyncio.Event()
        tasks = [asyncio.ensure_future(work(f"task {index}", (index + 1) * 512, turns)) for index in range(5)]
        tasks.append(asyncio.ensure_future(untagged(turns)))
        await asyncio.sleep(0)
        turns.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert tags(host) == {"untagged": 3 * 7 * 512} | {f"task {index}": (index + 1) * 512 * 6 for index in range(5)}


def test_a_tag_ends_with_its_block_however_that_ends(host):
    async def fails():
        with forebay.tag("failing"):
            await asyncio.sleep(0)
            raise RuntimeError("the real one")

    async def main():
        done = asyncio.ensure_future(fails())
        late = asyncio.ensure_future(asyncio.sleep(60))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(RuntimeError, match="the real one"):
            await done
        return host.allocate(512)

    kept = asyncio.run(main())
    assert tags(host) == {"untagged": 512}
    del kept


def test_contexts_are_kept_apart(host):
    outer = contextvars.copy_context()
    scope = forebay.tag("of a context")
    outer.run(scope.__enter__)
    plain, tagged = host.allocate(512), outer.run(host.allocate, 1024)
    assert tags(host) == {"untagged": 512, "of a context": 1024}
    scope.__exit__(None, None, None)  # it was entered elsewhere: nothing to leave
    dropped = outer.run(host.allocate, 2048)
    del dropped
    outer.run(scope.__exit__, None, None, None)
    again = outer.run(host.allocate, 512)
    assert tags(host) == {"untagged": 1024, "of a context": 1024}
    del plain, tagged, again


def test_threads_begin_untagged(host):
    kept = []
    with forebay.tag("main"):
        thread = threading.Thread(target=lambda: kept.append(host.allocate(512)))
        thread.start()
        thread.join()
        kept.append(host.allocate(1024))
    assert tags(host) == {"untagged": 512, "main": 1024}


def test_functions_and_coroutines_are_decorated(host):
    @forebay.tag("of a function")
    def make(size):
        """What it does."""
        return host.allocate(size)

    @forebay.tag("of a coroutine")
    async def make_later(size):
        await asyncio.sleep(0)
        return host.allocate(size)

    one, other = make(512), asyncio.run(make_later(1024))
    assert make.__name__ == "make" and make.__doc__ == "What it does."
    assert tags(host) == {"of a function": 512, "of a coroutine": 1024}
    assert make(512) is not None and host.allocate(2048) is not None
    with pytest.raises(TypeError, match="generator"):

        @forebay.tag("x")
        def generate():
            yield 1

    with pytest.raises(TypeError, match="decorates a function, not int"):
        forebay.tag("x")(3)
    del one, other


def test_a_call_names_its_own(host):
    with forebay.tag("outer"):
        kept = [host.allocate(512, tag="inner"), host.allocate(1024), host.zeros(512, "u1", tag="zeros"),
                *host.allocate_batch([512, 512], tag="batch"), forebay.array([1.0], device=host, tag="array"),
                host.upload(b"x" * 512, tag="uploaded")]
    assert set(tags(host)) == {"inner", "outer", "zeros", "batch", "array", "uploaded"}
    assert tags(host)["outer"] == 1024 and tags(host)["batch"] == 1024
    del kept
    with pytest.raises(TypeError):
        host.allocate(1, tag=3)


def test_generators_that_end_elsewhere_disturb_nobody(host):
    def generate():
        with forebay.tag("of a generator"):
            yield host.allocate(512)

    made = generate()
    kept = next(made)
    with forebay.tag("outer"):
        made.close()
        other = host.allocate(1024)
    rest = host.allocate(2048)
    assert tags(host)["of a generator"] == 512 and sum(tags(host).values()) == 3584
    del kept, other, rest


MANY = """
import forebay
pool, kept = forebay.Pool("host"), []
for number in range(400):
    with forebay.tag(f"tag {number}"):
        kept.append(pool.allocate(512))
found = {row["tag"]: row["live_bytes"] for row in pool.statistics()["tags"]}
print(len(found), found["tag 0"], found["tag 253"], sum(found.values()), found["other"] // 512)
with forebay.tag("other"):
    kept.append(pool.allocate(512))
print({row["tag"]: row["live_bytes"] // 512 for row in pool.statistics()["tags"]}["other"])
print(pool.leaks()[-1]["tag"])
"""


def test_names_beyond_the_last_number_count_as_other():
    ran = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["255 512 512 204800 146", "147", "other"]


def test_tags_may_be_entered_again(host):
    scope = forebay.tag("again")
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(scope)
        inner = host.allocate(512)
        with forebay.tag("within"):
            within = host.allocate(1024)
        after = host.allocate(512)
    outside = host.allocate(2048)
    assert tags(host) == {"again": 1024, "within": 1024, "untagged": 2048}
    del inner, within, after, outside
