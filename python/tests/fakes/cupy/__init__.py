"""As much of CuPy as an allocator sees."""

from . import cuda  # noqa: F401
