"""What all tests share: devices to run on, and nothing left behind."""

from __future__ import annotations

import functools
import gc

import pytest
from real_torch import torch  # noqa: F401  (a fixture)

import forebay


#: What can give a device that is not there.
_CURES = {
    "cuda:0": "FOREBAY_CUDA_DRIVER can name a driver",
    "hip:0": "FOREBAY_HIP_DRIVER can name a driver",
    "opencl:0": "the package pocl-opencl-icd has one",
}


@functools.cache
def _names() -> set[str]:
    return {device.name for device in forebay.devices()}


def _open(name: str) -> forebay.Device:
    """The device of that name: a GPU's driver, or the one that a variable names."""
    if name not in _names():
        pytest.skip(f"there is no {name} here; {_CURES[name]}")
    return forebay.device(name)


@pytest.fixture(params=["host", "sim", "cuda:0", "hip:0", "opencl:0"])
def device(request: pytest.FixtureRequest) -> forebay.Device:
    """Each device there is."""
    return _open(request.param)


@pytest.fixture(params=["sim", "cuda:0", "hip:0", "opencl:0"])
def accelerator(request: pytest.FixtureRequest) -> forebay.Device:
    """Each device whose memory the host cannot reach."""
    return _open(request.param)


@pytest.fixture
def cuda() -> forebay.Device:
    """The first GPU."""
    return _open("cuda:0")


@pytest.fixture
def hip() -> forebay.Device:
    """The first GPU by HIP."""
    return _open("hip:0")


@pytest.fixture
def opencl() -> forebay.Device:
    """The first device by OpenCL."""
    return _open("opencl:0")


@pytest.fixture
def pool(device: forebay.Device):
    """A pool of the test's own, which must end with nothing live."""
    pool = forebay.Pool(device)
    yield pool
    if not pool.closed:
        gc.collect()
        assert pool.statistics()["live_bytes"] == 0, pool.leaks()
        pool.close()


@pytest.fixture
def host():
    """A pool of the host."""
    with forebay.Pool("host") as pool:
        yield pool


def pytest_collection_finish() -> None:
    """Exempts what is there before the first test from `gc.collect()`, which the fixtures call after each."""
    gc.collect()
    gc.freeze()
