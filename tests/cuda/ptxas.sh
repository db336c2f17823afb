#!/usr/bin/env bash
# Compiles kernels of kernels/cuda/hopper.cuh and reads what ptxas says of them. It must spill no registers and leave products
# of warpgroups as they are: with C75xx it says that it serialized them, added waits or ignored a change of registers. These
# are remarks and not warnings, so the build does not stop at them.
#   ptxas.sh NVCC SOURCE...
set -euo pipefail
nvcc=$1
shift
for source; do
  said=$("$nvcc" -std=c++20 -O3 --expt-relaxed-constexpr -I "$(dirname "$0")/../.." -gencode arch=compute_90a,code=sm_90a \
    -Xptxas -v -cubin -o /dev/null "$source" 2>&1) || { echo "$said" && exit 1; }
  if ! grep -q 'bytes spill stores' <<<"$said"; then
    echo "$source: ptxas reports no kernel"
    exit 1
  fi
  if grep -E 'C75[0-9]{2}|[^0-9][1-9][0-9]* bytes spill' <<<"$said"; then
    echo "$source: ptxas spills registers or changes products of warpgroups"
    exit 1
  fi
done
