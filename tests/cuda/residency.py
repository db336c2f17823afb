#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads from ptxas how many registers the matrix-vector products take. By their registers, as many blocks must fit on a
multiprocessor of compute capability 9.0 as the grid has for each (BlocksPerMultiprocessor in matvec.cu): with fewer, a
part of the grid waits, and with more, a multiprocessor that is done early takes more than its share.

    residency.py NVCC MATVEC_SOURCE
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


def main():
    nvcc, source = sys.argv[1:]
    assert (blocks_that_fit(77), blocks_that_fit(96), blocks_that_fit(129)) == (3, 2, 1)  # the check can fail
    said = subprocess.run([nvcc, "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-I", SOURCE, "-gencode", "arch=compute_90,code=sm_90",
                           "-Xptxas", "-v", "-cubin", "-o", os.devnull, source], check=True, text=True, capture_output=True).stderr
    kernels = re.findall(r"Compiling entry function '(\S*MatVecKernel\S*)'.*?Used (\d+) registers", said, flags=re.S)
    failed = not kernels
    for name, registers in kernels:
        of = re.search(r"MatVecKernelI(?:NS_\d+(B?Float16)E|f)Lb([01])E", name)
        if of is None:
            print(f"{name}: its template arguments are not known here")
            failed = True
        elif of[1]:  # float32 weights are for tests
            expected, fit = (WITH_NORM if of[2] == "1" else WITHOUT), blocks_that_fit(int(registers))
            if fit != expected:
                print(f"{name}: {registers} registers, so that {fit} blocks fit, expected {expected}")
                failed = True
    print(f"{len(kernels)} kernels")
    sys.exit(failed)


main()
