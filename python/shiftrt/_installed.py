# SPDX-License-Identifier: Apache-2.0
"""Where the files of the wheel are, and the CUDA libraries that pip has installed."""
import glob
import os
import sys

# The library loads cuBLAS and cuSOLVER, and NCCL for several GPUs; those load the others.
_LIBRARIES = ("libnvJitLink", "libcudart", "libcublasLt", "libcublas", "libcusparse", "libcusolver", "libnccl")


def cuda_libraries(paths=None):
    """The files of the `nvidia-*` packages that are installed, each behind those that it needs.

    paths: directories with packages; by default those that Python searches.
    """
    found = []
    for name in _LIBRARIES:
        for path in sys.path if paths is None else paths:
            files = sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib", name + ".so.*")))
            if files:
                found.append(files[-1])
                break
    return found


def environment(package):
    """The variables that the program needs to find the demo model and the CUDA libraries, where they are not set."""
    variables = {} if "SHIFTRT_DEMO" in os.environ else {"SHIFTRT_DEMO": os.path.join(package, "demo")}
    directories = list(dict.fromkeys(os.path.dirname(file) for file in cuda_libraries()))
    if directories:
        before = os.environ.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = ":".join([before] * bool(before) + directories)
    return variables
