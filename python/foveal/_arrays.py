"""Arrays as the C interface takes them: NumPy's, and those of any library with `__dlpack__`."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int64, c_void_p
from typing import Any

from foveal._errors import InvalidArgument
from foveal._library import DLDataType, DLDevice, DLTensor

# DLPack's codes: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool. Types that the engine refuses are here
# too: it has the message.
_DTYPES = {
    "float16": (2, 16), "bfloat16": (4, 16), "float32": (2, 32), "float64": (2, 64),
    "int32": (0, 32), "int64": (0, 64), "uint8": (1, 8), "bool": (6, 8),
}
_NAMES = {code: name for name, code in _DTYPES.items()}

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, (ctypes.py_object, c_char_p)


class View:
    """A DLTensor over an array, and what keeps it alive. `dl` is what the C interface reads."""

    def __init__(self, name: str, array: Any):
        self.array = array
        if _is_numpy(array):
            self._view_numpy(name, array)
        elif hasattr(array, "__dlpack__"):
            self._capsule = array.__dlpack__()  # Not consumed: its destructor frees it.
            address = _capsule_pointer(self._capsule, b"dltensor")
            self.dl = DLTensor.from_address(address)
        else:
            raise InvalidArgument(
                f"{name} is a {type(array).__name__}: "
                "a NumPy array or one with __dlpack__ is needed")

    def _view_numpy(self, name: str, array: Any) -> None:
        if array.dtype.name not in _DTYPES:
            raise InvalidArgument(
                f"{name} is {array.dtype.name}: {', '.join(_DTYPES)} are known")
        if not array.dtype.isnative:
            raise InvalidArgument(f"{name} is {array.dtype.str}: the byte order of another machine")
        if type(array).__module__.startswith("numpy.ma"):
            raise InvalidArgument(f"{name} is a masked array: its mask would not be seen")
        if any(stride % array.itemsize for stride in array.strides):
            raise InvalidArgument(f"{name} has strides {array.strides} in bytes: "
                                  f"its elements of {array.itemsize} don't divide them")
        ndim = array.ndim
        self._shape = (c_int64 * ndim)(*array.shape)
        self._strides = (c_int64 * ndim)(*(s // array.itemsize for s in array.strides))
        self.dl = DLTensor(array.__array_interface__["data"][0], DLDevice(1, 0), ndim,
                           DLDataType(*_DTYPES[array.dtype.name], 1), self._shape, self._strides, 0)

    def pointer(self):
        return ctypes.pointer(self.dl)

    def check_writable(self, name: str) -> None:
        if _is_numpy(self.array) and not self.array.flags.writeable:
            raise InvalidArgument(f"{name} is read-only, and would be written to")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.dl.shape[axis] for axis in range(self.dl.ndim))

    @property
    def dtype_name(self) -> str:
        return _NAMES.get((self.dl.dtype.code, self.dl.dtype.bits), "")


def _is_numpy(array: Any) -> bool:
    return hasattr(array, "__array_interface__") and type(array).__module__.startswith("numpy")


def empty_like(view: View, shape: tuple[int, ...], dtype: str | None = None) -> Any:
    """An array of the same library on the same device, of another shape."""
    array = view.array
    if _is_numpy(array):
        import numpy

        return numpy.empty(shape, array.dtype if dtype is None else dtype)
    library = _namespace(array)
    wanted = array.dtype if dtype is None else getattr(library, dtype)
    return library.empty(shape, dtype=wanted, device=array.device)


def _namespace(array: Any) -> Any:
    """The module of an array's library: by the array API standard, else the one it is from."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    import importlib

    return importlib.import_module(type(array).__module__.partition(".")[0])
