#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the whole of scripts/gpu-run with stubs in the place of our programs and of the tools of a GPU machine. Stubs of
`date` and `timeout` keep a clock of their own, so that the result does not depend on the speed of the machine.

    gpu_run_test.py WORK
"""
import json
import os
import shutil
import subprocess
import sys

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")

STUBS = {
    "path/date": """
import sys
print(open(ROOT + "/clock").read() if sys.argv[1:] == ["+%s"] else "2000-01-02")
""",
    # Every command takes a second, and one that hangs takes its limit.
    "path/timeout": """
import subprocess, sys
assert sys.argv[1:3] == ["-k", "5"], sys.argv
status = subprocess.run(sys.argv[4:]).returncode
seconds, status = (int(sys.argv[3]), 124) if status == HANGS else (1, status)
clock = int(open(ROOT + "/clock").read())
open(ROOT + "/clock", "w").write(str(clock + seconds))
sys.exit(status)
""",
    "path/nvidia-smi": """
print("name, driver_version, memory.total, clocks.max.sm, clocks.max.mem, power.limit, pci.bus_id")
print("NVIDIA Test, 1.2, 1 MiB, 1 MHz, 1 MHz, 1 W, 00000000:01:00.0")
""",
    # AlwaysOnGpu passes; each of the others passes with one setting, or never.
    "pkg/bin/test_cuda_kernels": """
import os, sys
log(sys.argv)
tests = {"AlwaysOnGpu": {}, "OverlapOnGpu": {"SHIFTRT_CUDA_OVERLAP": "0"}, "BlockingOnGpu": {"CUDA_LAUNCH_BLOCKING": "1"},
         "LraInClusterOnGpu": {"NEVER": "1"}}
if "--gtest_list_tests" in sys.argv:
    if os.path.exists(ROOT + "/hang"): sys.exit(HANGS)
    for test in tests: print(test + ".\\n  Test")
    sys.exit()
suite = sys.argv[1].split("=")[1].split(".")[0]
passes = all(os.environ.get(name) == value for name, value in tests[suite].items())
report = {"testsuites": [{"name": suite, "testsuite": [{"name": "Test", "result": "COMPLETED", **({} if passes else {"failures": [1]})}]}]}
open(os.environ["work"] + "/json/tests.json", "w").write(json.dumps(report))
sys.exit(0 if passes else 1)
""",
    "pkg/bin/shiftrt": """
import os, sys
log(sys.argv)
if os.path.exists(ROOT + "/hang"): sys.exit(HANGS)
if "--save" in sys.argv: os.mkdir(sys.argv[sys.argv.index("--save") + 1])
model = sys.argv[sys.argv.index("--model") + 1] if "--model" in sys.argv else "demo"
assert model == "demo" or os.path.isdir(model), model
if "--json" in sys.argv:
    open(sys.argv[sys.argv.index("--json") + 1], "w").write(json.dumps({"kernels": [], "seconds": 1}))
""",
    "path/ncu": """
import sys
log(sys.argv)
print('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
print('"0","MatVecKernel","DRAM Throughput","%","91.5"')
""",
    "path/compute-sanitizer": "import sys\nlog(sys.argv)\n",
    # It answers for the rivals, and with the directories of its packages.
    "path/python3": """
import sys
log(sys.argv)
if "sys.path" in sys.argv[2]: print(ROOT + "/site")
""",
}
HEADER = """#!/usr/bin/python3
import json
ROOT = {root!r}
HANGS = 111  # the status of a program that stands for one that never ends
def log(words):
    import os
    names = ("SHIFTRT_CUDA_OVERLAP", "SHIFTRT_CUDA_GRAPHS", "CUDA_LAUNCH_BLOCKING", "SHIFTRT_CUDA_CLUSTERS", "SHIFTRT_CUDA_WGMMA")
    settings = {{name: os.environ[name] for name in names if name in os.environ}}
    open(ROOT + "/calls", "a").write(json.dumps([os.path.basename(words[0]), *words[1:], settings]) + "\\n")
"""


def records(path):
    data, at, found = open(path, "rb").read(), 0, []
    while at < len(data):
        end = data.index(b"\n", at)
        kind, size = data[at + 4:end].decode().rsplit(" ", 1)
        found.append((kind, data[end + 1:end + 1 + int(size)].decode()))
        at = end + 1 + int(size) + 1
    return found


def run(root):
    """Returns the records of a run, its calls of stubs, and its status and output."""
    for name in ("calls", "out"):
        shutil.rmtree(f"{root}/{name}", ignore_errors=True)
    open(f"{root}/calls", "w").close()
    open(f"{root}/clock", "w").write("1000000000")
    environment = {"PATH": f"{root}/path:/usr/bin:/bin", "VIRTUAL_ENV": f"{root}/venv", "TMPDIR": f"{root}/tmp"}
    done = subprocess.run([f"{root}/pkg/run.sh", "--out", f"{root}/out"], env=environment, text=True,
                          capture_output=True)
    calls = [json.loads(line) for line in open(f"{root}/calls")]
    return records(f"{root}/out/results.txt"), calls, done


def main():
    root = os.path.abspath(sys.argv[1])
    shutil.rmtree(root, ignore_errors=True)
    for name in ("path", "pkg/bin", "pkg/bench/rivals", "tmp", "site/nvidia/test/lib", "venv/lib/python3.9/site-packages/nvidia/cu13/lib"):
        os.makedirs(f"{root}/{name}")
    shutil.copy(f"{SOURCE}/scripts/gpu-run", f"{root}/pkg/run.sh")
    shutil.copytree(f"{SOURCE}/bench/shapes", f"{root}/pkg/bench/shapes")
    for name, body in STUBS.items():
        with open(f"{root}/{name}", "w") as file:
            file.write(HEADER.format(root=root) + body)
        os.chmod(file.name, 0o755)
    # Two libraries that a loader accepts, in the pip packages of the python3 on the path and of a virtual environment.
    library = subprocess.run(["ldd", "/bin/bash"], text=True, capture_output=True).stdout.split("libc.so.6 => ")[1].split()[0]
    packages = {"libcublas.so.16": f"{root}/site/nvidia/test/lib",
                "libcusolver.so.16": f"{root}/venv/lib/python3.9/site-packages/nvidia/cu13/lib"}
    for name, directory in packages.items():
        shutil.copy(os.path.join(os.path.dirname(library), "libm.so.6"), f"{directory}/{name}")

    found, calls, done = run(root)
    names = [name.removeprefix("status ") for name, _ in found if name.startswith("status ")]
    test = "test_cuda_kernels"
    assert names == [
        "facts", "libraries", f"test {test}.AlwaysOnGpu",
        f"test {test}.OverlapOnGpu", f"retry {test}.OverlapOnGpu SHIFTRT_CUDA_OVERLAP=0",
        f"test {test}.BlockingOnGpu", f"retry {test}.BlockingOnGpu SHIFTRT_CUDA_GRAPHS=0",
        f"retry {test}.BlockingOnGpu CUDA_LAUNCH_BLOCKING=1",
        f"test {test}.LraInClusterOnGpu", f"retry {test}.LraInClusterOnGpu SHIFTRT_CUDA_GRAPHS=0",
        "command run", "command sweep", "command ppl", "command generate", "command export",
        "bench llama-3.1-8b", "bench qwen2-1.5b", "bench qwen3.5-0.8b", "bench qwen3-30b-a3b-4-layers", "train llama-3.1-8b-lora-ce", "train llama-3.1-8b-lora-kl", "profile",
        "sanitizer memcheck", "sanitizer racecheck", "sanitizer synccheck", "rival packages", "rival llama-3.1-8b",
        "rival llama-3.1-8b-compiled", "rival qwen2-1.5b", "rival qwen2-1.5b-compiled", "rival llama-3.1-8b-kernels",
    ], names
    # Three suites failed, and nothing else; what a retry found stays set, and the records say so.
    assert done.returncode == 1 and ": 3 steps failed" in done.stdout, (done.stdout, done.stderr)
    statuses = {name.removeprefix("status "): text for name, text in found if name.startswith("status ")}
    assert "with" not in statuses[f"test {test}.OverlapOnGpu"]
    assert "with SHIFTRT_CUDA_OVERLAP=0" in statuses[f"test {test}.BlockingOnGpu"]
    last = "with SHIFTRT_CUDA_OVERLAP=0 CUDA_LAUNCH_BLOCKING=1 SHIFTRT_CUDA_CLUSTERS=0"
    assert statuses["bench llama-3.1-8b"].strip().endswith(last), statuses["bench llama-3.1-8b"]
    benches = [call for call in calls if call[0] == "shiftrt" and call[1] == "bench"]
    assert [call[2] for call in benches] == ["gpu"] * 4 + ["train"] * 2, benches
    for call in benches:
        assert call[-1] == {"SHIFTRT_CUDA_OVERLAP": "0", "CUDA_LAUNCH_BLOCKING": "1", "SHIFTRT_CUDA_CLUSTERS": "0"}, call
    # The larger shape is measured first. Both losses train on the weights that were made for it.
    kept = benches[0][benches[0].index("--save") + 1]
    assert "bench/shapes/llama-3.1-8b.json" in benches[0] and "bench/shapes/qwen2-1.5b.json" in benches[1]
    assert [call[call.index("--loss") + 1] for call in benches[4:]] == ["ce", "kl"]
    assert all(call[call.index("--model") + 1] == kept for call in benches[4:]) and not os.path.exists(kept)
    assert [(call[1], "cuda" in call) for call in calls if call[0] == "shiftrt" and call[1] != "bench"] == [
        ("run", True), ("sweep", True), ("ppl", True), ("generate", True), ("export", False)], calls
    rivals = [call for call in calls if call[0] == "python3" and call[1].endswith("/transformers_gpu.py")]
    assert ["--compile" in call for call in rivals] == [False, True, False, True], rivals
    everything = json.dumps(calls)
    assert "70b" not in everything and "405b" not in everything
    assert any(call[0] == "ncu" and call[1:3] == ["--clock-control", "none"] for call in calls)
    libraries = dict(found)["log libraries"]
    for name, directory in packages.items():
        assert f"{name} => {directory}/{name} " in libraries, libraries

    # gpu-table keeps retries, training, libraries and the profile.
    out = f"{root}/results.json"
    subprocess.run([sys.executable, f"{SOURCE}/scripts/gpu-table", "--add", f"{root}/out/results.txt", "--to", out], check=True)
    result = json.load(open(out))
    assert result["retries"] == {"OverlapOnGpu": "SHIFTRT_CUDA_OVERLAP=0", "BlockingOnGpu": "CUDA_LAUNCH_BLOCKING=1",
                                 "LraInClusterOnGpu": None}, result["retries"]
    assert [t["suite"] for t in result["tests"] if t["status"] == "passed"] == ["AlwaysOnGpu"]
    assert [t["shape"] for t in result["train"]] == ["llama-3.1-8b-lora-ce", "llama-3.1-8b-lora-kl"]
    assert set(result["commands"]) == {"run", "sweep", "ppl", "generate", "export"}, result["commands"]
    assert result["profile"] == [{"ID": "0", "Kernel Name": "MatVecKernel", "Metric Name": "DRAM Throughput",
                                  "Metric Unit": "%", "Metric Value": "91.5"}], result["profile"]
    assert "libcublas.so.16" in result["libraries"]

    # Programs that hang, the list of tests included: the run ends in time, and every step has its record.
    open(f"{root}/hang", "w").close()
    found, calls, done = run(root)
    seconds = int(done.stdout.split()[-2])
    assert done.returncode == 1 and seconds <= 570, done.stdout
    names = [name.removeprefix("status ") for name, _ in found if name.startswith("status ")]
    assert names[:4] == ["facts", "libraries", "list test_cuda_kernels", "command run"], names
    assert "command export" in names and names[-1] == "rival llama-3.1-8b-kernels", names
    trained = [call for call in calls if call[0] == "shiftrt" and call[2] == "train"]
    assert "--save" in trained[0], "training makes the weights if there are none"
    limits = {name: int(text.split(" of at most ")[1].split()[0]) for name, text in found
              if name.startswith("status ") and " of at most " in text}
    assert limits["status bench llama-3.1-8b"] == 150 and limits["status bench qwen2-1.5b"] == 90, limits
    assert max(limits.values()) == 150

    # A machine without these tools: a record says so, and nothing else is lost.
    os.remove(f"{root}/hang")
    for name in ("ncu", "compute-sanitizer"):
        os.remove(f"{root}/path/{name}")
    found, calls, done = run(root)
    statuses = {name.removeprefix("status "): text for name, text in found if name.startswith("status ")}
    for name in ("profile", "sanitizers"):
        assert statuses[name].startswith("skipped: no "), statuses
    assert ": 3 steps failed" in done.stdout, done.stdout
    print(f"passed: a run in which everything hangs takes {seconds} of 570 seconds")


main()
