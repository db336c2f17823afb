# SPDX-License-Identifier: Apache-2.0
"""Where the files of the wheel are, and the CUDA libraries that pip has installed."""
import glob
import os
import sys

# The library loads cuBLAS and cuSOLVER of CUDA 13, and NCCL for several GPUs; those load the others. Packages of another CUDA
# version may be installed besides them, so the names have the versions that the library asks for.
_LIBRARIES = ("libnvJitLink.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcusparse.so.12", "libcusolver.so.12", "libnccl.so.2")


def cuda_libraries(paths=None):
    """The files of the `nvidia-*` packages that are installed, each after those that it needs.

    paths: directories with packages; by default those that Python searches.
    """
    found = []
    for name in _LIBRARIES:
        files = [file for path in (sys.path if paths is None else paths)
                 for file in sorted(glob.glob(os.path.join(glob.escape(path), "nvidia", "*", "lib", name)))]
        found += files[:1]
    return found


def environment(package):
    """The variables that the program needs to find the demo model and the CUDA libraries, where they are not set."""
    variables = {} if "SHIFTRT_DEMO" in os.environ else {"SHIFTRT_DEMO": os.path.join(package, "demo")}
    directories = list(dict.fromkeys(os.path.dirname(file) for file in cuda_libraries()))
    if directories:
        before = os.environ.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = ":".join([before] * bool(before) + directories)
    return variables
