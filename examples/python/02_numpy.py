"""Arrays and numpy: memory that is shared, not copied, and kept as long as an array lives."""

import forebay

try:
    import numpy as np
except ImportError:
    print("this example needs numpy")
    raise SystemExit(0)

x = forebay.array([[1, 2, 3], [4, 5, 6]], "float32")  # device="cuda:0" for the first GPU
x[1] = np.ones(3, "float32")  # rows take arrays of their dtype and shape, or a number
print(x)

matrix = x.numpy()  # on a GPU a copy
matrix[0] *= 10
print(x[::2], x.dtype == np.float32)

try:
    x.free()
except forebay.InUseError as error:
    print("not yet:", error)

# The other way round: numpy's memory, lent by DLPack.
print(forebay.from_dlpack(np.arange(4.0)))
