"""rmm.mr."""

resources = {}


class CallbackMemoryResource:
    """A resource of two functions: (size, stream) -> address, and (address, size, stream)."""

    def __init__(self, allocate_func, deallocate_func):
        self.allocate, self.deallocate = allocate_func, deallocate_func


def set_per_device_resource(device, resource):
    resources[device] = resource
