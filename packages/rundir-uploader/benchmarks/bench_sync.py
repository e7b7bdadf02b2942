"""Client CPU of `rundir-uploader sync` against a bare obstore loop, and what a trigger costs.

    python packages/rundir-uploader/benchmarks/bench_sync.py [--smoke]

Everything goes to one `rclone serve s3` on loopback. CPU is user + system time of the client's
process, interpreter start included; runs of the two alternate and the smallest of each counts.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rundir_uploader import Uploader
from stretto.object_store.conformance.servers import ACCESS_KEY, SECRET_KEY, Rclone

CPU_RATIO_TARGET = 1.3  # where it goes; printed, not enforced yet
TRIGGER_LIMIT = 1e-3
HELP_LIMIT = 0.150

BARE = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import obstore
from obstore.store import S3Store
root, bucket = Path(sys.argv[1]), sys.argv[2]
store = S3Store(bucket, endpoint=os.environ["AWS_ENDPOINT_URL"],
    client_options={"allow_http": True},
    access_key_id=os.environ["AWS_ACCESS_KEY_ID"], virtual_hosted_style_request=False,
    secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"], region="us-east-1")
def send(path):
    obstore.put(store, "bare/" + path.relative_to(root).as_posix(), path.read_bytes(),
        use_multipart=False)
files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.parts[-2][0] != "."]
with ThreadPoolExecutor(8) as pool:
    list(pool.map(send, files))
"""


def client_cpu(command: list[str]) -> tuple[float, float]:
    """Run a command; return its CPU seconds and its wall seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command} failed: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime), wall


def make_files(root: Path, count: int, size: int) -> None:
    for number in range(count):
        path = root / f"d{number // 100:03d}" / f"f{number:05d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))


def measure_sync(server: Rclone, count: int, repeats: int) -> tuple[float, float, float]:
    """Return the CPU of sync and of the bare loop, and the CPU of a sync with nothing to do."""
    sync, bare, unchanged = [], [], []
    module = [sys.executable, "-m", "rundir_uploader"]
    for number in range(repeats):
        root = Path(tempfile.mkdtemp(prefix="bench-", dir="/dev/shm"))
        try:
            make_files(root, count, 10 << 10)
            bucket = f"bench{number}"
            server.make_bucket(bucket)
            bare.append(client_cpu([sys.executable, "-c", BARE, str(root), bucket])[0])
            command = [*module, "sync", str(root), f"s3://{bucket}/ours"]
            sync.append(client_cpu(command)[0])
            unchanged.append(client_cpu(command)[0])
        finally:
            shutil.rmtree(root)
    return min(sync), min(bare), min(unchanged)


def measure_trigger(count: int) -> float:
    """Return the median seconds that a trigger blocks, with 10 of so many files changed."""
    root = Path(tempfile.mkdtemp(prefix="bench-", dir="/dev/shm"))
    try:
        run = root / "run"
        run.mkdir()
        for number in range(count):
            folder = run / f"d{number // 1000:03d}"
            folder.mkdir(exist_ok=True)
            (folder / f"f{number}").touch()
        times = []
        with Uploader(run, root / "store", exclude=["d*"]) as uploader:
            for turn in range(200):
                for number in range(10):
                    (run / f"changed{number}").write_text(str(turn))
                began = time.perf_counter()
                uploader.trigger()
                times.append(time.perf_counter() - began)
                time.sleep(0.005)
        return statistics.median(times)
    finally:
        shutil.rmtree(root)


def measure_help(repeats: int) -> float:
    """Return the CPU seconds of --help over those of an interpreter that does nothing."""
    ours, nothing = [], []
    for _ in range(repeats):
        ours.append(client_cpu([sys.executable, "-m", "rundir_uploader", "--help"])[0])
        nothing.append(client_cpu([sys.executable, "-c", "pass"])[0])
    return min(ours) - min(nothing)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, limits not enforced")
    smoke = parser.parse_args().smoke
    count, repeats = (50, 1) if smoke else (5000, 3)
    with Rclone() as server:
        os.environ.update(
            AWS_ACCESS_KEY_ID=ACCESS_KEY,
            AWS_SECRET_ACCESS_KEY=SECRET_KEY,
            AWS_REGION="us-east-1",
            AWS_ENDPOINT_URL=server.url,
        )
        ours, bare, unchanged = measure_sync(server, count, repeats)
    trigger = measure_trigger(100 if smoke else 100_000)
    help_cpu = measure_help(1 if smoke else 7)
    rows = [
        ("trigger, median s", trigger, TRIGGER_LIMIT),
        ("--help over a bare interpreter, CPU s", help_cpu, HELP_LIMIT),
        (f"sync of {count} unchanged, CPU s", unchanged, None),
    ]
    print(f"{'work':<52} {'ours':>10} {'peer':>10} {'ratio':>6} {'limit':>10}")
    name = f"sync {count} x 10 KiB, CPU s (peer: bare obstore)"
    target = f"({CPU_RATIO_TARGET:.2f} x)"
    print(f"{name:<52} {ours:>10.6f} {bare:>10.6f} {ours / bare:>6.2f} {target:>10}")
    failed = False
    for name, value, limit in rows:
        shown = f"{limit:.6f}" if limit is not None else "-"
        print(f"{name:<52} {value:>10.6f} {'-':>10} {'-':>6} {shown:>10}")
        failed |= limit is not None and value > limit
    return 1 if failed and not smoke else 0


if __name__ == "__main__":
    sys.exit(main())
