"""Makes forebay PyTorch's allocator in each process that imports torch, where FOREBAY_TORCH asks for it.

``forebay-torch.pth``, which lies beside this file in site-packages, imports it when a Python process starts with the
variable set. Nothing of forebay or PyTorch is imported before the program imports torch itself, so a tool that never does
is left alone.
"""

import os
import sys

VARIABLE = "FOREBAY_TORCH"
#: The reason that was warned of already. Child processes inherit it, so that a job warns once.
WARNED = "FOREBAY_TORCH_WARNED"

MODES = {
    "1": "install forebay, or fail",
    "fallback": "install forebay, or keep PyTorch's own allocator if that fails",
    "0": "off, as is an empty value",
}


class Finder:
    """Leaves torch to the other finders, and installs forebay as soon as it is loaded."""

    refused: Exception | None = None

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        if self.refused:
            # A second import of PyTorch in one process fails with errors of its own, which would hide this reason.
            raise self.refused.with_traceback(None)
        others = [finder.find_spec for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (find(name, path, target) for find in others)), None)
        loader = spec and spec.loader
        if loader:
            load = loader.exec_module

            def load_and_install(module):
                del loader.exec_module
                load(module)
                try:
                    install()
                except Exception as error:
                    self.refused = error
                    raise
                if self in sys.meta_path:
                    sys.meta_path.remove(self)

            loader.exec_module = load_and_install
        return spec


def install():
    """Installs forebay in the PyTorch that is loaded, as the variable says."""
    mode = os.environ.get(VARIABLE) or "0"
    if mode == "0":
        return
    if mode not in MODES:
        allowed = "; ".join(f"{value}: {meaning}" for value, meaning in MODES.items())
        raise ValueError(f"{VARIABLE} is {mode!r}. Allowed are {allowed}")
    # Not an ImportError: programs would conclude that PyTorch is not installed.
    refusal: type[Exception] = RuntimeError
    try:
        import forebay.torch

        refusal = forebay.torch.InstallError
        forebay.torch._install_at_import()
    except Exception as error:
        if mode == "1":
            hint = f"{VARIABLE}=fallback would run without forebay"
            raise refusal(f"{error} ({hint})") from error
        warn(str(error))


def warn(reason):
    """Warns once in a job that it runs without forebay, and why."""
    if os.environ.get(WARNED) == reason:
        return
    os.environ[WARNED] = reason
    import warnings

    warnings.warn(f"PyTorch's own allocator serves, not forebay: {reason}", RuntimeWarning, stacklevel=4)


if "torch" in sys.modules:
    install()
elif os.environ.get(VARIABLE, "0") != "0":
    sys.meta_path.insert(0, Finder())
