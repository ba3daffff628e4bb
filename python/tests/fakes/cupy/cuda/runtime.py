"""cupy.cuda.runtime."""


def getDevice():
    return 0
