"""The commit, date and machine that are stored with every figure."""
import datetime
import subprocess
from pathlib import Path


def provenance():
    here = Path(__file__).parent
    commit = subprocess.run(["git", "-C", here, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    cpu = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {"date": datetime.date.today().isoformat(), "commit": commit.stdout.strip(), "cpu": cpu[0] if cpu else "?"}
