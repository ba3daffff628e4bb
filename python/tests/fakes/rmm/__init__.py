"""As much of RMM as a resource sees."""

from . import mr


class Stream:
    """A stream that tells its number as RMM's do."""

    def __init__(self, handle=0):
        self.handle = handle

    def __cuda_stream__(self):
        return (0, self.handle)


class DeviceBuffer:
    """Memory of the current resource."""

    def __init__(self, size, stream=None):
        self.size, self.stream = size, stream or Stream()
        self.resource = mr.resources[0]
        self.ptr = self.resource.allocate(size, self.stream)

    def __del__(self):
        if getattr(self, "ptr", 0):
            self.resource.deallocate(self.ptr, self.size, self.stream)
