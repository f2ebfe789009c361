"""What a call that fails raises. The text is the engine's: the argument, the value, what is
allowed."""

from __future__ import annotations

import re


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


# What PyTorch's dispatcher says of an argument of another type, before it lists the declaration.
_WRONG_TYPE = re.compile(r"foveal::\w+\(\) Expected a value of type '(?P<wanted>.+?)' for argument "
                         r"'(?P<name>\w+)' but instead found type '(?P<found>\w+)'")
_WANTED = {"Tensor": "a tensor", "int": "an integer", "float": "a number", "bool": "True or False"}


def translated(error: RuntimeError) -> Exception:
    """The error that the engine meant by `error`, which PyTorch's dispatcher let through, or one
    that says in short what the dispatcher did not; any other error as it is."""
    prefix, separator, message = str(error).partition(": ")
    if separator and prefix in _BY_PREFIX:
        return _BY_PREFIX[prefix](message)
    if wrong := _WRONG_TYPE.match(str(error)):
        wanted = wrong["wanted"].removeprefix("Optional[").removesuffix("]")
        return InvalidArgument(f"{wrong['name']} is a {wrong['found']}: "
                               f"{_WANTED.get(wanted, wanted)} is needed")
    return error
