"""Files of weights: what arrives, what is refused, and what is left of a load that ends early."""

import gc
import json
import os
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import real_torch

import forebay

#: The types of the format that numpy has too.
NUMPY = {"BOOL": "?", "U8": "u1", "I16": "<i2", "F16": "<f2", "F32": "<f4", "F64": "<f8", "I64": "<i8", "C64": "<c8"}


def write(path, tensors, cut=None, **changes):
    """A file of tensors by name: pairs of a type and a numpy array. `changes` replace entries of its header."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, array) in tensors.items():
        own = array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(own)]}
        data += own
    text = json.dumps(header | changes).encode()
    path.write_bytes((struct.pack("<Q", len(text)) + text + data)[:cut])
    return path


def some(count=5):
    """Tensors of all those types."""
    draw = np.random.default_rng(3)
    made = {}
    for number in range(count):
        for dtype, name in NUMPY.items():
            shape = [(7,), (3, 41), (), (0, 5), (2, 3, 4)][number % 5]
            made[f"{number}.{dtype}"] = dtype, draw.integers(0, 100, shape).astype(name)
    return made


def host(array):
    """An array of forebay's as numpy's."""
    return array.download().reshape(array.shape) if array.device.name != "host" else np.asarray(array).copy()


def live(device):
    gc.collect()
    return forebay.pool(device).statistics()["live_bytes"]


@pytest.fixture
def nothing_left(device):
    """The device, whose pool ends as it began."""
    before = live(device)
    yield device
    assert live(device) == before


def test_arrays_are_as_in_the_file(nothing_left, tmp_path):
    tensors, before = some(), live(nothing_left)
    path = write(tmp_path / "model.safetensors", tensors)
    loaded = forebay.load_file(path, nothing_left)
    assert list(loaded) == list(tensors)
    for name, (_, expected) in tensors.items():
        array = loaded[name]
        assert (array.shape, str(array.dtype)) == (expected.shape, str(expected.dtype)), name
        back = np.zeros(expected.shape, expected.dtype)
        if expected.size:
            array.download(back)
        assert np.array_equal(back, expected), name
    # One of them keeps nothing of the others.
    kept = loaded.pop("1.F64")
    del loaded, array
    assert live(nothing_left) <= before + 1024
    del kept


def test_a_part_of_several_files(nothing_left, tmp_path):
    one, other = some(1), {f"x.{name}": given for name, given in some(2).items()}
    write(tmp_path / "a.safetensors", one)
    write(tmp_path / "b.safetensors", other)
    where = dict.fromkeys(one, "a.safetensors") | dict.fromkeys(other, "b.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    both = [tmp_path / "a.safetensors", str(tmp_path / "b.safetensors")]
    for given in (index, str(tmp_path), both):
        assert set(forebay.load_file(given, nothing_left)) == set(one) | set(other)
        loaded = forebay.load_file(given, nothing_left, names=["x.1.F32", "0.I16"])
        assert list(loaded) == ["0.I16", "x.1.F32"]
        back = np.zeros((3, 41), "f4")
        loaded["x.1.F32"].download(back)
        assert np.array_equal(back, other["x.1.F32"][1])
        del loaded


def test_types_that_numpy_does_not_have(tmp_path):
    bits = np.arange(24, dtype="u1")
    given = {
        "half": ("BF16", (3, 4), bits),
        "eight": ("F8_E4M3", (2, 12), bits),
        "scale": ("F8_E8M0", (24,), bits),
        "four": ("F4", (6, 8), bits),
        "six": ("F6_E2M3", (4, 8), bits),
    }
    entries, start = {}, 0
    for name, (dtype, shape, data) in given.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + data.nbytes]}
        start += data.nbytes
    text = json.dumps(entries).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bits.tobytes() * len(given))
    loaded = forebay.load_file(path)
    shapes = {name: loaded[name].shape for name in given}
    assert shapes == {"half": (3, 4), "eight": (2, 12), "scale": (24,), "four": (6, 4), "six": (24,)}
    assert str(loaded["half"].dtype) == "bfloat16"
    for array in loaded.values():
        back = np.zeros(24, "u1")
        array.view("uint8").reshape(-1).download(back)
        assert np.array_equal(back, bits)


def test_a_file_that_lies_is_refused_and_leaves_nothing(nothing_left, tmp_path):
    tensors = {"a": ("F32", np.ones(100, "f4")), "b": ("U8", np.ones(8, "u1"))}
    entry = {"dtype": "U8", "shape": [8], "data_offsets": [400, 408]}
    for number, (cut, changes, said) in enumerate([
        (-1, {}, "cut short"),
        (20, {}, "cut short"),
        (None, {"b": entry | {"data_offsets": [396, 404]}}, "overlap"),
        (None, {"b": entry | {"shape": [9]}}, "need 9 B"),
        (None, {"b": entry | {"dtype": "U9"}}, "U9"),
        (None, {"c": entry}, "overlap"),
        (None, {"b": entry | {"shape": [1 << 40, 1 << 40]}}, "whole number of bytes"),
    ]):
        path = write(tmp_path / f"{number}.safetensors", tensors, cut, **changes)
        with pytest.raises(forebay.WeightsError, match=said) as caught:
            forebay.load_file(path, nothing_left)
        assert str(path) in str(caught.value)
        assert isinstance(caught.value, ValueError)


def test_names_and_files_that_are_not_there(tmp_path):
    path = write(tmp_path / "m.safetensors", {"model.weight": ("U8", np.ones(8, "u1"))})
    with pytest.raises(forebay.WeightsError, match='"model.weight" is the most similar'):
        forebay.load_file(path, names=["model.weigth"])
    with pytest.raises(TypeError):
        forebay.load_file(path, names="model.weight")
    with pytest.raises(FileNotFoundError):
        forebay.load_file(tmp_path / "gone.safetensors")
    with pytest.raises(FileNotFoundError):
        forebay.load_file([path, tmp_path / "gone.safetensors"])


@pytest.fixture
def large(tmp_path):
    return write(tmp_path / "large.safetensors", {"a": ("U8", np.arange(96 << 20, dtype="u1"))})


def test_progress_ends_with_all(nothing_left, large):
    told = []
    loaded = forebay.load_file(large, nothing_left, progress=lambda *now: told.append(now))
    assert told == sorted(told) and told[-1] == (96 << 20, 96 << 20)
    assert len(told) == len(set(told))
    del loaded


def test_what_progress_raises_cancels_the_load(nothing_left, large):
    def stop(moved, total):
        raise ZeroDivisionError(f"{moved} of {total}")

    with pytest.raises(ZeroDivisionError):
        forebay.load_file(large, nothing_left, progress=stop)


def test_a_file_that_shrinks_meanwhile_is_an_error(nothing_left, large):
    def shrink(moved, total):
        os.truncate(large, 1000)

    # The callback may come when all is read already.
    try:
        forebay.load_file(large, nothing_left, progress=shrink)
    except forebay.WeightsError as error:
        assert "was changed while it was read" in str(error)
    with pytest.raises(forebay.WeightsError, match="cut short"):
        forebay.load_file(large, nothing_left)


def test_other_threads_run_meanwhile(large):
    ran = []

    def count():
        while not ended:
            ran.append(1)
            time.sleep(0.0005)

    ended = []
    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(3):
            forebay.load_file(large, "sim")
    finally:
        ended.append(True)
        thread.join()
    assert len(ran) > 5


def test_an_interrupt_cancels_the_load(large):
    import _thread

    before = live("sim")

    def interrupt(moved, total):
        _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        forebay.load_file(large, "sim", progress=interrupt)
        time.sleep(1)
    assert live("sim") == before


IN_TORCH = """
import json, struct, forebay.torch, torch
given = {
    "a": ("F32", torch.float32, [3, 5]), "b": ("BF16", torch.bfloat16, [64, 9]), "c": ("F8_E4M3", torch.float8_e4m3fn, [4, 2]),
    "d": ("F8_E5M2", torch.float8_e5m2, [8]), "e": ("I64", torch.int64, []), "f": ("BOOL", torch.bool, [6]),
    "g": ("F16", torch.float16, [0, 4]), "h": ("C64", torch.complex64, [2]), "i": ("U8", torch.uint8, [1 << 20]),
}
header, data = {}, b""
for name, (dtype, kind, shape) in given.items():
    size = torch.empty(shape, dtype=kind).numel() * torch.empty(0, dtype=kind).element_size()
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
    data += bytes(at % 2 for at in range(size))
text = json.dumps(header).encode()
with open(path, "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
for device in devices:
    loaded = forebay.torch.load_file(path, device=device)
    assert list(loaded) == list(given)
    for name, (_, kind, shape) in given.items():
        one = loaded[name]
        assert (one.dtype, list(one.shape), one.device) == (kind, shape, torch.device(device)), (name, one)
        start, end = header[name]["data_offsets"]
        if one.numel():
            back = one.cpu().reshape(-1).view(torch.uint8)
            assert bytes(back.tolist()) == data[start:end], name
    some = forebay.torch.load_file(path, device=torch.device(device), names=["b"])
    assert list(some) == ["b"]
try:
    forebay.torch.load_file(path, device="meta")
except forebay.UnsupportedError:
    pass
else:
    raise AssertionError("meta is no device for weights")
"""


@pytest.mark.parametrize("prelude", ["", real_torch.INSTALL], ids=["beside it", "inside it"])
def test_tensors_of_pytorch(torch, tmp_path, prelude):
    package = f"del sys.modules['forebay']; sys.path.insert(0, {str(Path(forebay.__file__).parents[1])!r})\n"
    setup = f"path = {str(tmp_path / 'm.safetensors')!r}\ndevices = ['cpu', 'cuda:0']\n"
    torch(setup + IN_TORCH, prelude=package + prelude)
