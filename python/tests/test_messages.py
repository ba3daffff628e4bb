"""What errors say, in Python's words."""

from __future__ import annotations

import pytest

import forebay

np = pytest.importorskip("numpy")


def test_a_callback_that_raises_is_the_cause(host):
    def fails(shortage):
        raise KeyError("mine")

    with forebay.Pool("host", max_bytes="4MiB", on_shortage=fails) as pool:
        with pytest.raises(forebay.OutOfMemoryError) as told:
            pool.allocate("40MiB")
        assert isinstance(told.value.__cause__, KeyError) and told.value.requested == 40 << 20
        with pytest.raises(forebay.OutOfMemoryError) as told:
            pool.empty(40 << 20, "u1")
        assert isinstance(told.value.__cause__, KeyError)


def test_a_cause_belongs_to_its_request_alone(monkeypatch):
    import sys

    told, answers = [], iter([KeyError("first"), True])
    monkeypatch.setattr(sys, "unraisablehook", lambda report: told.append(report.exc_value))

    def helps_late(shortage):
        answer = next(answers, False)
        if isinstance(answer, Exception):
            raise answer
        pool.configure(max_bytes="64MiB")
        return answer

    with forebay.Pool("host", max_bytes="4MiB", on_shortage=helps_late) as pool:
        with pytest.raises(forebay.OutOfMemoryError) as refused:
            pool.allocate("40MiB")
        assert isinstance(refused.value.__cause__, KeyError)
        pool.allocate("40MiB").free()
        with pytest.raises(forebay.OutOfMemoryError) as refused:
            pool.allocate("400MiB")
        assert refused.value.__cause__ is None and told == []


def test_freeing_during_a_transfer_says_what_to_do(accelerator):
    with forebay.Pool(accelerator) as pool:
        buffer = pool.allocate("8MiB")
        transfer = buffer.upload_async(bytes(8 << 20))
        with pytest.raises(forebay.InUseError, match=r"wait\(\) or ended with cancel\(\)"):
            buffer.free()
        transfer.wait()
        buffer.free()


@pytest.mark.parametrize("call", [
    lambda: forebay.Pool(3), lambda: forebay.pool("host").allocate(1.5), lambda: forebay.pool("host").allocate(None),
    lambda: forebay.pool("host").allocate([1]), lambda: forebay.pool("host").allocate(1, stream="x"),
    lambda: forebay.Pool("host", max_bytes=[1]), lambda: forebay.zeros(3, 5), lambda: forebay.tag(3),
    lambda: forebay.zeros(3)["a"], lambda: forebay.zeros(3).copy_(None), lambda: forebay.from_dlpack,
][:-1])
def test_what_is_of_the_wrong_type_is_a_type_error(call):
    with pytest.raises(TypeError):
        call()


def test_settings_are_named_as_they_were_given(host):
    with pytest.raises(forebay.InvalidError, match='zero cannot be "true".*never, pages or blocks'):
        forebay.Pool("host", zero=True)
    assert forebay.Pool("host", upkeep=False).settings()["upkeep"]["value"] == "off"
    pool = forebay.Pool("host", max_bytes=100)
    row = pool.settings()["max_bytes"]
    assert row["value"] == "100" or row["value"].startswith("100"), row
    assert row["in_force"] == pool.limit == 2 << 20, "rounded up to whole pages"


def test_shared_buffers_name_types_as_python_does():
    memory = forebay.BufferManager("host")
    name = f"messages-{id(memory)}"
    made = memory.shared(name, 10, "uint64")
    with pytest.raises(forebay.InvalidError, match="elements of uint64, not float32"):
        memory.open_shared(name, dtype="float32")
    assert memory.open_shared(name).dtype == made.dtype == "uint64"


def test_views_in_the_way_are_named(host):
    buffer = forebay.BufferManager(host).buffer(100)
    view = buffer.on_host(write=True)
    with pytest.raises(forebay.InUseError, match="mapped on the host for writing by a view that still lives"):
        buffer.on_device()
    del view
