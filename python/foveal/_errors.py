"""What a call that fails raises. The text is the engine's: the argument, the value, what is
allowed."""

from __future__ import annotations


class InvalidArgument(ValueError, RuntimeError):
    """The arguments contradict themselves or the contract."""


class Unsupported(NotImplementedError):
    """Valid, but no kernel, device or build here can do it. A RuntimeError too."""


# By foveal_status, and by the prefix with which an error crosses PyTorch's dispatcher.
_BY_STATUS = {1: InvalidArgument, 2: Unsupported, 3: MemoryError}
_BY_PREFIX = {
    "foveal.InvalidArgument": InvalidArgument,
    "foveal.Unsupported": Unsupported,
    "foveal.OutOfMemory": MemoryError,
    "foveal.DeviceError": RuntimeError,
    "foveal.InternalError": RuntimeError,
}


def from_status(status: int, message: str) -> Exception:
    return _BY_STATUS.get(status, RuntimeError)(message)


def is_not_taken(error: RuntimeError) -> bool:
    """True for the operator's word that a call is not for it (csrc/sdpa.hpp), and for the
    dispatcher's that its arguments are of other types."""
    return str(error).startswith(("foveal.NotTaken", "foveal::"))


def translated(error: RuntimeError) -> Exception:
    """The error that the engine meant by `error`, which PyTorch's dispatcher let through; any other
    error as it is."""
    prefix, separator, message = str(error).partition(": ")
    if separator and prefix in _BY_PREFIX:
        return _BY_PREFIX[prefix](message)
    return error
