"""Memory of the host as numpy arrays: shared, not copied, and kept as long as an array lives."""

import forebay

try:
    import numpy as np
except ImportError:
    print("this example needs numpy")
    raise SystemExit(0)

pool = forebay.Pool("host")
buffer = pool.allocate(4 * 6)
matrix = np.asarray(buffer.view("float32", (2, 3)))
matrix[:] = [[1, 2, 3], [4, 5, 6]]
print(np.frombuffer(buffer.to_bytes(), "float32"))

try:
    buffer.free()
except forebay.InUseError as error:
    print("not yet:", error)

# The other way round: numpy's memory, lent by DLPack.
view = forebay.from_dlpack(np.arange(4.0))
print(view, view.dtype, view.shape)
