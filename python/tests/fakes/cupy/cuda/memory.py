"""cupy.cuda.memory."""

from . import runtime


class OutOfMemoryError(MemoryError):
    """As CuPy's: of a size, a total and a limit."""

    def __init__(self, size, total, limit=0):
        self._size, self._total, self._limit = size, total, limit
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes)")


class Memory:
    """Memory of an allocator, given back when it goes."""

    def __init__(self, size, malloc, free):
        self.device_id, self._free = runtime.getDevice(), free
        self.ptr = 0
        if size > 0:
            self.ptr = malloc(size, self.device_id)

    def __del__(self):
        if self.ptr:
            self._free(self.ptr, self.device_id)


def alloc(size):
    raise RuntimeError("CuPy's own memory, of which there is none here")
