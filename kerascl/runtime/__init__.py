"""The only room that imports pyopencl: devices, buffers, programs, launches."""
