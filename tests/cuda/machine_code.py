#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the machine code of the kernels that decode a token: a loop of multiply-adds must load everything that it needs
from global memory before the first of them, and nothing may be loaded after the last. Otherwise each such load is a
latency that nothing hides. A matrix-vector product of 16-bit or float32 weights loads 128 bytes per lane before it waits
for earlier launches.

    machine_code.py NVCC SOURCE...

Exits with 77, which CTest counts as skipped, if there is no nvdisasm next to nvcc or on the path.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
EARLY_LOADS = 8  # of 16 bytes
LOAD = re.compile(r"\bLDG?\.E")  # not LDGSTS, which is asynchronous


def functions(code):
    """Yields the name of each kernel and its lines: instructions, and labels that end in a colon."""
    for part in re.split(r"^\.text\.", code, flags=re.M)[1:]:
        name, _, body = part.partition(":")
        lines = []
        for line in body.splitlines():
            if label := re.match(r"(\.L_x_\d+):", line):
                lines.append(label[0])
            elif instruction := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
                lines.append(instruction[1])
        yield name, lines


def innermost_loops(lines):
    labels = {line[:-1]: at for at, line in enumerate(lines) if line.endswith(":")}
    loops = []
    for at, line in enumerate(lines):
        target = re.search(r"\bBRA(?:\.\w+)* .*?(\.L_x_\d+)", line)
        if target and labels.get(target[1], at) < at - 1:  # not the endless loop after the last instruction
            loops.append((labels[target[1]], at))
    return [loop for loop in loops if not any(other != loop and loop[0] <= other[0] and other[1] <= loop[1] for other in loops)]


def check(name, lines):
    """The complaints about a kernel, and the number of its loops of multiply-adds."""
    found, counted = [], 0
    for begin, end in innermost_loops(lines):
        body = lines[begin:end]
        first = next((i for i, line in enumerate(body) if re.search(r"\bFFMA2?\b", line)), None)
        if first is None:
            continue
        counted += 1
        found += [f"between multiply-adds: {line}" for line in body[first:] if LOAD.search(line)]
    last = max((i for i, line in enumerate(lines) if re.search(r"\bFFMA2?\b", line)), default=len(lines))
    found += [f"after the last multiply-add: {line}" for line in lines[last:] if LOAD.search(line)]
    if "12MatVecKernel" in name and "Quantised" not in name:  # the first, mangled, is no ExpertMatVecKernel
        wait = next((i for i, line in enumerate(lines) if "ACQBULK" in line), 0)
        early = sum("LDG.E.EF.128" in line for line in lines[:wait])
        if early != EARLY_LOADS:
            found.append(f"{early} loads of weights before the wait, expected {EARLY_LOADS}")
    return found, counted


def main():
    nvcc, sources = sys.argv[1], sys.argv[2:]
    disassembler = shutil.which("nvdisasm", path=os.path.dirname(os.path.realpath(nvcc))) or shutil.which("nvdisasm")
    if disassembler is None:
        print("skipped: no nvdisasm")
        sys.exit(77)
    # The check can fail.
    late = [".L_x_1:", "LDG.E.128 R4, desc[UR4][R2.64]", "FFMA R8, R4, R9, R8", "LDG.E R6, desc[UR4][R2.64]", "@P0 BRA `(.L_x_1)", "EXIT"]
    assert check("late", late)[0][0] == "between multiply-adds: " + late[3]
    assert check("after", late[:3] + late[4:] + late[1:2])[0] == ["after the last multiply-add: " + late[1]]

    failed = False
    for source in sources:
        name = os.path.basename(source)
        architecture = "90a" if name == "lra_cluster.cu" else "90"
        with tempfile.TemporaryDirectory() as directory:
            cubin = os.path.join(directory, "kernel.cubin")
            subprocess.run([nvcc, "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-I", SOURCE, "-gencode",
                            f"arch=compute_{architecture},code=sm_{architecture}", "-cubin", "-o", cubin, source], check=True)
            code = subprocess.run([disassembler, "-c", cubin], check=True, text=True, capture_output=True).stdout
        kernels = loops = 0
        for kernel, lines in functions(code):
            found, counted = check(kernel, lines)
            kernels += 1
            loops += counted
            for complaint in found:
                print(f"{name}: {kernel}: {complaint}")
                failed = True
            if counted == 0:
                print(f"{name}: {kernel}: no loop of multiply-adds was found")
                failed = True
        print(f"{name}: {kernels} kernels, {loops} loops of multiply-adds")
        failed |= kernels == 0
    sys.exit(1 if failed else 0)


main()
