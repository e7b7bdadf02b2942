"""5,000 files of 10 KiB up to ``rclone serve s3``: ours over obstore, bare obstore, and peers.

Each client is a process of its own; its CPU seconds (imports included) and wall time are compared.
Rounds alternate, and the best of each client counts, since the machine may be busy with others.

    python bench_small_files.py [--smoke] [--files N] [--rounds N] [--threads N]

Exits with 1 when ours over obstore takes more than 1.15 of bare obstore's CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SIZE = 10 * 1024
LIMIT = 1.15
BUCKET = "bench"


def obstore_bare(endpoint: str) -> Callable[[str, Path], None]:
    import obstore
    from obstore.store import S3Store

    store = S3Store(BUCKET, endpoint=endpoint, client_options={"allow_http": True})

    def upload(key: str, path: Path) -> None:
        obstore.put(store, key, path)

    return upload


def ours(endpoint: str, backend: str | None = None) -> Callable[[str, Path], None]:
    from stretto.object_store import open_store, upload_file

    store = open_store(f"s3://{BUCKET}", endpoint=endpoint, backend=backend)

    def upload(key: str, path: Path) -> None:
        upload_file(store, key, path)

    return upload


def boto3_client(endpoint: str) -> Callable[[str, Path], None]:
    import boto3
    from boto3.s3.transfer import TransferConfig

    client = boto3.Session().client("s3", endpoint_url=endpoint)
    config = TransferConfig(use_threads=False)

    def upload(key: str, path: Path) -> None:
        client.upload_file(str(path), BUCKET, key, Config=config)

    return upload


CLIENTS: dict[str, tuple[str, Callable[[str], Callable[[str, Path], None]]]] = {
    "obstore, bare": ("obstore", obstore_bare),
    "ours, obstore": ("obstore", ours),
    "ours, libcloud": ("libcloud", lambda endpoint: ours(endpoint, "libcloud")),
    "boto3 upload_file": ("boto3", boto3_client),
}


def run_client(name: str, endpoint: str, folder: str, threads: int) -> None:
    """In the child: upload every file of a folder, then tell wall and CPU seconds."""
    import time

    upload = CLIENTS[name][1](endpoint)
    prefix = f"run-{os.getpid()}"  # replacing an object costs the server more than making one
    paths = sorted(Path(folder).iterdir())
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda path: upload(f"{prefix}/{path.name}", path), paths))
    print(json.dumps({"wall": time.perf_counter() - began, "cpu": time.process_time()}))


def measure(name: str, endpoint: str, folder: Path, threads: int) -> dict[str, float]:
    from stretto.object_store.conformance.servers import ACCESS_KEY, SECRET_KEY

    keys = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
    }
    command = [sys.executable, __file__, "--client", name, endpoint, str(folder), str(threads)]
    done = subprocess.run(
        command, env={**os.environ, **keys}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def measure_all(
    names: list[str], files: int, rounds: int, threads: int
) -> dict[str, dict[str, float]]:
    from stretto.object_store.conformance.servers import Rclone

    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, Rclone() as server:
        server.make_bucket(BUCKET)
        for number in range(files):
            (Path(folder) / f"{number:05d}").write_bytes(os.urandom(SIZE))
        for _ in range(rounds):
            for name in names:
                found = measure(name, server.url, Path(folder), threads)
                kept = best.setdefault(name, found)
                best[name] = {key: min(kept[key], found[key]) for key in found}
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--smoke", action="store_true", help="tiny, limits not enforced")
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.client:
        name, endpoint, folder, threads = arguments.client
        run_client(name, endpoint, folder, int(threads))
        return 0
    files, rounds = (100, 1) if arguments.smoke else (arguments.files, arguments.rounds)
    names = [name for name, (module, _) in CLIENTS.items() if importlib.util.find_spec(module)]
    best = measure_all(names, files, rounds, arguments.threads)
    base = best["obstore, bare"]
    print(
        f"{files} files of 10 KiB to rclone serve s3, {arguments.threads} threads, {rounds} rounds"
    )
    print(f"{'client':<20}{'CPU s':>8}{'ratio':>8}{'wall s':>9}{'ratio':>8}{'limit':>8}")
    for name in names:
        cpu, wall = best[name]["cpu"], best[name]["wall"]
        limit = f"{LIMIT}" if name == "ours, obstore" else ""
        ratios = f"{cpu:>8.2f}{cpu / base['cpu']:>8.2f}{wall:>9.2f}{wall / base['wall']:>8.2f}"
        print(f"{name:<20}{ratios}{limit:>8}")
    met = best["ours, obstore"]["cpu"] <= LIMIT * base["cpu"]
    return 0 if met or arguments.smoke else 1


if __name__ == "__main__":
    sys.exit(main())
