#!/usr/bin/env bash
# Tests the archive of scripts/gpu-pack in a root directory that contains only bash, coreutils, libc and libstdc++. Its
# programs must start there and skip every GPU test by name. A step that fails, a step that is killed and a full disk must
# not lose the results of earlier steps.
#   tests/gpu_package.sh BUILD WORK
# Exits with 77, which CTest counts as skipped, if chroot is not permitted.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd) build=$1 work=$2
chroot / true 2>/dev/null || { echo "skipped: chroot needs root"; exit 77; }
fail() { echo "FAILED: $*" >&2; [ -f "$root/out/results.txt" ] && head -c 3000 "$root/out/results.txt" >&2; exit 1; }

rm -rf "$work"
root=$work/root
mkdir -p "$root"/{bin,tmp,out,dev,pkg}
"$source/scripts/gpu-pack" --build "$build" --out "$work/package.tar.xz"  # refuses more than 64 MiB
(cd "$work" && python3 -m tarfile -e package.tar.xz unpacked)  # the way of a machine without xz
mv "$work"/unpacked/shiftrt-gpu-*/* "$root/pkg/"
: >"$root/dev/null"

tools=()
for tool in bash env timeout cat df tail tr cut mktemp rm mkdir stat truncate date uname nproc basename dirname; do
  tools+=("$(command -v $tool)")
  cp "$(command -v $tool)" "$root/bin/"
done
bare=$(ldd "${tools[@]}" | sed -n 's/.*[[:space:]]\(\/\S*\) (0x.*/\1/p')
runtime=$(ldd "$root/pkg/bin/shiftrt" | sed -n 's/^\t\(libc\|libm\|libdl\|libpthread\|librt\|libstdc++\|libgcc_s\)\.so\.\S* => \(\/\S*\) .*/\2/p')
for library in $bare $runtime; do
  mkdir -p "$root$(dirname "$library")"
  cp -L "$library" "$root$library"
done
chroot=$(command -v chroot)
run() { env -i PATH=/bin "$chroot" "$root" /bin/bash /pkg/run.sh --out /out --only tests "$@"; }
has() { grep -qE -- "$1" "$root/out/results.txt" || fail "no $1 in results.txt"; }

run --commit 0123456789ab --date 2000-01-02 >"$work/log" || fail "the tests do not start: $(tail -5 "$work/log")"
has '^commit: 0123456789ab$'
has '^date: 2000-01-02$'
has '^=== json test test_cuda_kernels\.NormOnGpu tests\.json'
has '"result": "SKIPPED"'
has 'no NVIDIA driver'
! grep -q '"failures": [1-9]' "$root/out/results.txt" || fail "a GPU test ran"
suites=$(grep -c '^=== status test ' "$root/out/results.txt")

# A test that was renamed must not leave the sanitizers' subset or the table of gpu-table unnoticed.
set -f
for pattern in $(sed -n "s/^subset='\(.*\)'$/\1/p" "$source/scripts/gpu-run" | tr : ' '); do
  "$build/bin/test_cuda_kernels" --gtest_filter="$pattern" --gtest_list_tests | grep '^  ' >/dev/null || fail "$pattern names no test"
done
for suite in $(sed -n '/^SUITES = {/,/^}/p' "$source/scripts/gpu-table" | grep -oE '"[A-Za-z]+OnGpu\.' | tr -d '".'); do
  grep -q "^=== status test test_cuda_[a-z_]*\.$suite " "$root/out/results.txt" || fail "gpu-table names a suite $suite that did not run"
done
set +f

# The commands are accepted, and end because there is no GPU.
env -i PATH=/bin "$chroot" "$root" /bin/bash /pkg/run.sh --out /out --only commands >"$work/log" && fail "the commands need a GPU"
[ "$(grep -c '^shiftrt: .*no NVIDIA driver' "$root/out/results.txt")" -eq 4 ] || fail "a command ends for another reason"

# A program that fails and one that is killed stand before the real ones.
program() {
  printf '#!/bin/bash\n[ "$1" = --gtest_list_tests ] && { echo "%s."; echo "  Test"; exit; }\n%s\n' "$2" "$3" >"$root/pkg/bin/$1"
  chmod +x "$root/pkg/bin/$1"
}
program test_cuda_0 Fails 'echo "the launch failed"; exit 3'
program test_cuda_1 Dies 'kill -9 $$'
run >"$work/log" && fail "a failed step is no success"
has '^=== status test test_cuda_0\.Fails '
has '^3 after '
has '^=== status retry test_cuda_0\.Fails SHIFTRT_CUDA_OVERLAP=0 '
has '^=== status retry test_cuda_0\.Fails CUDA_LAUNCH_BLOCKING=1 '
has '^the launch failed'
has '^137 after '
[ "$(grep -c '^=== status test ' "$root/out/results.txt")" -eq $((suites + 2)) ] || fail "steps after a killed one are missing"
rm "$root/pkg/bin"/test_cuda_[01]

# The result of gpu-table.
printf '#!/bin/bash\necho "name, driver_version, memory.total, clocks.max.sm, clocks.max.mem, power.limit, pci.bus_id"\necho "NVIDIA Test, 1.2, 1 MiB, 1 MHz, 1 MHz, 1 W, 00000000:01:00.0"\n' >"$root/bin/nvidia-smi"
chmod +x "$root/bin/nvidia-smi"
program test_cuda_1 Dies 'kill -9 $$'
run --commit 0123456789ab --date 2000-01-02 >"$work/log" && fail "a killed step is no success"
python3 "$source/scripts/gpu-table" --add "$root/out/results.txt" --to "$work/results.json" >"$work/log" || fail "$(cat "$work/log")"
python3 - "$work/results.json" <<'PYTHON' || fail "gpu-table read the results wrongly"
import json, sys
result = json.load(open(sys.argv[1]))
assert result["device"] == "NVIDIA Test" and result["driver"] == "1.2" and result["date"] == "2000-01-02"
assert [t["suite"] for t in result["tests"] if t["status"] == "failed"] == ["Dies"]
assert sum(t["status"] == "skipped" for t in result["tests"]) > 50
PYTHON
rm "$root/pkg/bin/test_cuda_1" "$root/bin/nvidia-smi"

# No time: every step says so.
run --seconds 6 >"$work/log" || true
has 'skipped: no time left'

# A disk that is too small for all: what fits is whole, and the run says how much is missing.
if mount -t tmpfs -o size=16k none "$root/out" 2>/dev/null; then
  trap 'umount "$root/out"' EXIT
  run >"$work/log" 2>&1 && fail "a full disk is no success"
  has '^=== log facts'
  grep -q 'no room for' "$work/log" || fail "the run does not say that the disk is full"
  python3 - "$root/out/results.txt" <<'PYTHON' || fail "a record was cut"
import re, sys
data, at = open(sys.argv[1], "rb").read(), 0
while at < len(data):
    end = data.index(b"\n", at)
    at = end + 1 + int(re.fullmatch(rb"=== .+ (\d+)", data[at:end])[1]) + 1
assert at == len(data)
PYTHON
fi
echo "passed: $suites suites start in the bare root directory"
