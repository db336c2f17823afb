#!/usr/bin/env bash
# Checks that scripts/check-house finds each deliberate violation in a small tree, and nothing else.
#   seeded.sh path-of-check-house
set -euo pipefail
check=$(readlink -f "$1")
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$tree"
mkdir -p api runtime kernels/cpu engine/cuda shift/sums eval include/shiftrt tests/shift tools docs
echo '#include "engine/decoder.h"' >runtime/upward.h
echo '#include "eval/scorer.h"' >shift/across.cc
printf '#include <vector>\n#include "runtime/check.h"\n' >include/shiftrt/inward.h
# The public interface: a header of values that needs what acts, and directories that include the latter.
printf '#include "shiftrt/blocks.h"\n#include "shiftrt/model.h"\n' >include/shiftrt/recipe.h
printf '#include "include/shiftrt/recipe.h"\n#include "include/shiftrt/runner.h"\n' >shift/face.cc
echo '#include "kernels/cpu/simd_body.h"' >engine/body.cc
echo '#include "kernels/cuda/gram.h"' >shift/device.cc
printf '#include "runtime/processes.h"\n// Processes\nvoid Send(Packer& packer);\nbool b = context.processes->alone();\n' >eval/talk.cc
printf '#include "shift/job.h"\n#include "shift/fit/ridge.h"\n' >shift/sums/upward.cc
echo '#include "engine/cuda/cuda_engine.h"' >eval/backend.cc
printf '#include "kernels/cuda/gram.h"\n#include "include/shiftrt/error.h"\n#include "runtime/check.h"\n' >engine/cuda/fine.cc
echo '#include "engine/decoder.h"' >tests/shift/listed_test.cc
# Commands: a new one that calls a directory below the public interface, a header for them that does, and a listed one that no
# longer does.
printf '#include "shiftrt/runner.h"\n#include "tools/options.h"\n#include "engine/decoder.h"\n' >tools/cmd_speak.cc
echo '#include "shiftrt/runner.h"' >tools/cmd_bench.cc
printf '#include "runtime/check.h"\n#include "shift/job.h"\n' >tools/steps.h
cp tests/shift/listed_test.cc tests/shift/lonely_test.cc
cp tests/shift/listed_test.cc tests/shift/silent_test.cc
printf 'TEST(Ridge, DIS%s) {}\nTEST(Ridge, Skips) { GTEST_SKIP(); }\nTEST(Ridge, Says) { GTEST_SKIP() << "no GPU"; }\n// TEST(Ridge, Out) {}\n' ABLED_Solves >tests/shift/off_test.cc
printf 'shiftrt_test(shift SOURCES shift/listed_test.cc shift/off_test.cc  # tests/shift/silent_test.cc\n)\n' >tests/shift.cmake
printf 'fine: the directory work/models\n%s\n' "stands in /home""/somebody/models" >docs/page.md
# Names: files that are not there, in a comment, a page and a message; links to a page and to a heading that are not there.
printf '// Fits, as shift/rank.cc does; also shift/across.cc, shift/*.cc, engine/cuda/ and ~/models/x.cc.\n// See docs/gone.md.\n' >runtime/names.h
echo 'const char* hint = "docs/lost.md";' >runtime/hint.cc
cat >docs/links.md <<'END'
# A page, of links
[fine](page.md), [fine](../shift/across.cc), [fine](#a-page-of-links), [fine](other.md#two-words), [fine](https://host/gone.md)
[gone](gone.md) and `runtime/gone.h`
[no heading](other.md#three-words)
END
echo '## `Two` words' >docs/other.md
# Environment variables: one that is not on the page, and one of the page that no code reads.
printf 'const char* a = std::getenv("SHIFTRT_LISTED");\nconst char* b = Environment({"HF_ONE", "HF_TWO"});\n' >runtime/variables.cc
printf '| `SHIFTRT_LISTED`, `HF_ONE` |\n| `SHIFTRT_GONE` |\n' >docs/environment.md
# Messages of the program: one that no file contains, and one that a script has.
printf 'FailUsage("a rank of {}, "\n          "expected {}", rank, most);\n' >runtime/message.cc
mkdir scripts && printf '#!/bin/sh\n# What it does.\n%s\n' 'echo "install it and start again"' >scripts/setup
printf '%s\n' '| `a rank of …, expected …`, `start again` |' '| `a rank of …, found and wrong …` | `any` |' '| a system: `no such thing` | |' >docs/troubleshooting.md
# Comments that are no sentences, in a room whose comments are.
cat >api/comments.h <<'END'
// Whole: of the sentences here, some begin with other words.

// Of a plan.
int a;  // of the plan
// What it is
// made of.

// Where a comma stands, a clause follows.

// How many there are. It is, though, a fragment.

/// What a reader of the documentation sees.
END

# Words of our own, in a comment and in identifiers; a text may have them.
cat >runtime/words.h <<'END'
// The tally of a batch.
struct Walk {};
int walks, keeper_count;
const char* text = "the \"carrier\" settles";
END

# The README's commands: one that CI runs, and one that it does not run as it stands.
mkdir .ci && printf './test\ngit clone . there\ncd there\n# Begins.\n./start\n./test -R Ridge\n./test\n' >.ci/run
printf '# A page\n```\n./start   # begins\n./test    # tests\n```\n```\nanother\n```\n' >README.md

# Pages: a README that is too long, and a line that is too long, where only prose has a limit.
printf 'word%.0s\n' $(seq 700) >>README.md
printf '%0121d\n| %0121d |\n```\n%0121d\n```\n' 1 2 3 >docs/wide.md

find . -name '*.h' -o -name '*.cc' | xargs sed -i '1i // SPDX-License-Identifier: Apache-2.0'
echo '#pragma once' >runtime/unlicensed.h

if found=$(SHIFTRT_HOUSE=$tree "$check"); then echo "check-house found nothing"; exit 1; fi
expected='README.md:1
README.md:4
api/comments.h:11
api/comments.h:13
api/comments.h:4
api/comments.h:5
api/comments.h:6
docs/environment.md:1
docs/environment.md:1
docs/links.md:2
docs/links.md:3
docs/links.md:3
docs/links.md:4
docs/page.md:2
docs/troubleshooting.md:2
docs/wide.md:1
engine/body.cc:2
eval/backend.cc:2
eval/talk.cc:2
eval/talk.cc:4
eval/talk.cc:5
include/shiftrt/inward.h:3
include/shiftrt/recipe.h:3
runtime/hint.cc:2
runtime/names.h:2
runtime/names.h:3
runtime/unlicensed.h:1
runtime/upward.h:2
runtime/words.h:2
runtime/words.h:3
runtime/words.h:4
scripts/setup:2
shift/across.cc:2
shift/device.cc:2
shift/face.cc:3
shift/sums/upward.cc:3
tests/shift/lonely_test.cc:1
tests/shift/off_test.cc:2
tests/shift/off_test.cc:3
tests/shift/off_test.cc:5
tests/shift/silent_test.cc:1
tools/cmd_bench.cc:1
tools/cmd_speak.cc:4
tools/steps.h:3'
places=$(LC_ALL=C sort <<<"$found" | grep -oE '^[^:]+:[0-9]+')
[ "$places" = "$expected" ] || { printf 'found:\n%s\nexpected breaches at:\n%s\n' "$found" "$expected"; exit 1; }
