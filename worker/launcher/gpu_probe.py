"""Ask NVIDIA's driver how many GPUs it has. This is a separate program, since a broken driver may never answer.

It prints the number or the driver's error. Without the driver's library it fails: the GPUs may be another vendor's.
"""

import ctypes
import sys

LIBRARY = "libnvidia-ml.so.1"


def main(library: str = LIBRARY) -> None:
    """Print the answer.

    Raises:
        OSError: there is no such library.
    """
    nvml = ctypes.CDLL(library)
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    count = ctypes.c_uint()
    status = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    print(nvml.nvmlErrorString(status).decode(errors="replace") if status else count.value)


if __name__ == "__main__":
    main(*sys.argv[1:])
