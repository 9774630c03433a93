"""pyopencl, loaded after the drivers are findable, and the few calls made past it.

Setting a kernel's arguments through pyopencl costs several times the launch
itself, so clSetKernelArg and clEnqueueNDRangeKernel are called through ctypes
in the same library that pyopencl loaded.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

from kerascl.runtime import icd

IMPORTED_BEFORE = "pyopencl" in sys.modules
SETUP = icd.prepare()

import pyopencl as cl  # noqa: E402  (the loader's environment comes first)

__all__ = [
    "EXIT", "IMPORTED_BEFORE", "POINTER_SIZE", "RAW", "SETUP", "SIZES", "Program", "Raw", "cl",
    "code_name", "sub_group_sizes",
]  # fmt: skip


class Raw:
    """The ctypes entry points; arguments are given as ctypes objects or ints below 2**31.

    They hold the GIL (as pyopencl's enqueue does): releasing it would let another
    Python thread keep it for milliseconds after every launch.
    """

    def __init__(self, library: ctypes.CDLL):
        self.set_arg = library.clSetKernelArg
        self.enqueue = library.clEnqueueNDRangeKernel
        self.set_arg.restype = self.enqueue.restype = ctypes.c_int
        self._create = library.clCreateKernel
        self._create.restype = ctypes.c_void_p
        self._info = library.clGetKernelInfo
        self._info.restype = ctypes.c_int
        self._device_info = library.clGetDeviceInfo
        self._device_info.restype = ctypes.c_int
        self.release_kernel = library.clReleaseKernel
        self.release_kernel.restype = ctypes.c_int

    def device_sizes(self, device: cl.Device, key: int) -> tuple[int, ...]:
        """An array of size_t that clGetDeviceInfo knows by this number, () if it does not."""
        handle, values = ctypes.c_void_p(device.int_ptr), (ctypes.c_size_t * 16)()
        used, room = ctypes.c_size_t(0), ctypes.c_size_t(ctypes.sizeof(values))
        status = self._device_info(handle, key, room, values, ctypes.byref(used))
        return () if status else tuple(values[: used.value // ctypes.sizeof(ctypes.c_size_t)])

    def create_kernel(self, program: cl.Program, name: str) -> tuple[ctypes.c_void_p, int]:
        """A new kernel object and its number of arguments.

        pyopencl generates argument-setting code for each of its Kernels, which takes a quarter
        of a millisecond and is never used here.

        Raises:
            pyopencl.Error: the driver refuses.
        """
        status = ctypes.c_int(0)
        program_pointer = ctypes.c_void_p(program.int_ptr)
        pointer = self._create(program_pointer, name.encode(), ctypes.byref(status))
        if status.value or not pointer:
            cl.Kernel(program, name)  # fails in the same way, with pyopencl's exception
            raise RuntimeError(f"clCreateKernel failed: {code_name(status.value)}")
        kernel = ctypes.c_void_p(pointer)
        count = ctypes.c_uint(0)
        what, size = int(cl.kernel_info.NUM_ARGS), ctypes.c_size_t(4)
        self._info(kernel, what, size, ctypes.byref(count), None)
        return kernel, count.value


class Program:
    """An OpenCL program of one device, from a source text or from a binary, not yet built.

    pyopencl's own Program warns of whatever a compiler remarks and keeps a second cache on disk;
    this is the class beneath it.

    Attributes:
        handle: what pyopencl takes for a program.
    """

    def __init__(self, context: cl.Context, device: cl.Device, text: str | bytes):
        self._device = device
        source = isinstance(text, str)
        arguments = (text,) if source else ([device], [text])
        self.handle = cl._cl._Program(context, *arguments)

    def build(self, options: Sequence[str] = ()) -> cl.Program:
        """The program, built.

        Raises:
            pyopencl.Error: it does not build; `log` says why.
        """
        self.handle._build(" ".join(options).encode(), [self._device])
        return self.handle

    def log(self) -> str:
        """What the compiler said."""
        try:
            text = self.handle.get_build_info(self._device, cl.program_build_info.LOG)
        except cl.Error:
            return ""
        return (text or "").strip("\0 \n")


class Exit:
    """What happens to OpenCL objects while the interpreter ends.

    Python then drops objects in any order; NVIDIA's driver crashes when memory
    is released after its context or queue.  From `begin` on nothing is released:
    the system takes it all back in a moment.
    """

    def __init__(self) -> None:
        self.begun = False
        self._increment = ctypes.pythonapi.Py_IncRef
        self._increment.argtypes = [ctypes.py_object]
        self._increment.restype = None

    def begin(self, *objects: object) -> None:
        """The queues are done; keep `objects` for good."""
        self.begun = True
        for kept in objects:
            self._increment(kept)


EXIT = Exit()


def _find_raw() -> Raw | None:
    # dlsym on the extension's handle also searches the libraries it was linked to.
    for name in (cl._cl.__file__, "OpenCL.dll", "libOpenCL.so.1"):
        try:
            raw = Raw(ctypes.PyDLL(name))
        except (OSError, AttributeError):
            continue
        return raw
    return None


RAW = _find_raw()

# CL_DEVICE_SUB_GROUP_SIZES_INTEL, for which pyopencl has no name
_SUB_GROUP_SIZES = 0x4108


def sub_group_sizes(device: cl.Device) -> tuple[int, ...]:
    """The sub-group sizes that a device with cl_intel_required_subgroup_size offers."""
    return () if RAW is None else RAW.device_sizes(device, _SUB_GROUP_SIZES)


_CODES: dict[int, str] = {
    value: name
    for name, value in vars(cl.status_code).items()
    if isinstance(value, int) and not name.startswith("_")
}


def code_name(code: int) -> str:
    """The name of an OpenCL status code."""
    return _CODES.get(code, f"error {code}")


SIZES = {n: ctypes.c_size_t(n) for n in (1, 2, 4, 8, 16, 32, 64, 128)}
POINTER_SIZE = ctypes.c_size_t(ctypes.sizeof(ctypes.c_void_p))
