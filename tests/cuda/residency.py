#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads from ptxas how many registers the matrix-vector products take. By their registers, as many blocks must fit on a
multiprocessor of compute capability 9.0 as the grid has for each (BlocksPerMultiprocessor in matvec.cu): with fewer, a
part of the grid waits, and with more, a multiprocessor that is done early takes more than its share. No kernel spills.

    residency.py NVCC SOURCE...
"""
import os
import re
import subprocess
import sys

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
THREADS, REGISTERS, UNIT = 256, 65536, 8  # of a block, of a multiprocessor, and the unit in which a thread gets registers
WITH_NORM, WITHOUT = 3, 2


def blocks_that_fit(registers):
    return REGISTERS // (THREADS * -(-registers // UNIT) * UNIT)


def check(source, said):
    """Prints complaints about the kernels of a source, and returns whether there are any."""
    kernels = re.findall(r"Compiling entry function '(\S*MatVecKernel\S*)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", said, flags=re.S)
    failed = not kernels
    for name, spilled, registers in kernels:
        # The products of experts have no norm, and no argument that says so.
        of = re.search(r"MatVecKernelI(?:NS_\d+(B?Float16)E|f|N\S*(Quantised)E)(?:Lb([01])E|L)", name)
        if of is None:
            print(f"{name}: its template arguments are not known here")
            failed = True
        elif of[1] or of[2]:  # float32 weights are for tests
            expected, fit = (WITH_NORM if of[3] == "1" and of[1] else WITHOUT), blocks_that_fit(int(registers))
            if fit != expected:
                print(f"{name}: {registers} registers, so that {fit} blocks fit, expected {expected}")
                failed = True
        if spilled != "0":
            print(f"{name}: {spilled} bytes are spilled")
            failed = True
    print(f"{source}: {len(kernels)} kernels")
    return failed


def main():
    nvcc, sources = sys.argv[1], sys.argv[2:]
    assert (blocks_that_fit(77), blocks_that_fit(96), blocks_that_fit(129)) == (3, 2, 1)  # the check can fail
    failed = False
    for source in sources:
        said = subprocess.run([nvcc, "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-I", SOURCE, "-gencode", "arch=compute_90,code=sm_90",
                               "-Xptxas", "-v", "-cubin", "-o", os.devnull, source], check=True, text=True, capture_output=True).stderr
        failed |= check(os.path.basename(source), said)
    sys.exit(failed)


main()
