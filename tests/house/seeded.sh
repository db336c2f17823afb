#!/usr/bin/env bash
# Checks that scripts/check-house finds each deliberate violation in a small tree, and nothing else.
#   seeded.sh path-of-check-house
set -euo pipefail
check=$(readlink -f "$1")
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$tree"
mkdir -p runtime kernels/cpu engine/cuda shift eval include/shiftrt tests/shift docs
echo '#include "engine/decoder.h"' >runtime/upward.h
echo '#include "eval/scorer.h"' >shift/across.cc
printf '#include <vector>\n#include "runtime/check.h"\n' >include/shiftrt/inward.h
echo '#include "kernels/cpu/simd_body.h"' >engine/body.cc
echo '#include "kernels/cuda/gram.h"' >shift/device.cc
echo '#include "engine/cuda/cuda_engine.h"' >eval/backend.cc
printf '#include "kernels/cuda/gram.h"\n#include "include/shiftrt/error.h"\n#include "runtime/check.h"\n' >engine/cuda/fine.cc
echo '#include "engine/decoder.h"' >tests/shift/listed_test.cc
cp tests/shift/listed_test.cc tests/shift/lonely_test.cc
echo 'shiftrt_test(shift SOURCES shift/listed_test.cc)' >tests/shift.cmake
printf 'fine: the directory work/models\n%s\n' "stands in /home""/somebody/models" >docs/page.md

find . -name '*.h' -o -name '*.cc' | xargs sed -i '1i // SPDX-License-Identifier: Apache-2.0'
echo '#pragma once' >runtime/unlicensed.h

if found=$(SHIFTRT_HOUSE=$tree "$check"); then echo "check-house found nothing"; exit 1; fi
expected='docs/page.md:2
engine/body.cc:2
eval/backend.cc:2
include/shiftrt/inward.h:3
runtime/unlicensed.h:1
runtime/upward.h:2
shift/across.cc:2
shift/device.cc:2
tests/shift/lonely_test.cc:1'
places=$(sort <<<"$found" | grep -oE '^[^:]+:[0-9]+')
[ "$places" = "$expected" ] || { printf 'found:\n%s\nexpected breaches at:\n%s\n' "$found" "$expected"; exit 1; }
