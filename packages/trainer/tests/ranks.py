"""Run a function on several real processes, as the ranks of one run.

One process imports torch and waits; for each run it forks the ranks, so that the import is paid
once a session. Loaded by path from ``conftest.py``: see the fixture ``run_ranks`` there.
"""

from __future__ import annotations

import inspect
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import time
import traceback
from pathlib import Path

FAILED_TO_END = 124


class RankServer:
    """The process that forks ranks; started at the first run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, function, n, folder, *, timeout, env, arguments, expect_failure=False):
        """Run a self-contained function on n ranks; return what each returned.

        The function's source is run in fresh processes: it must import what it uses, and gets
        ``arguments`` as keywords. What it returns is pickled. With ``expect_failure`` the list
        holds ``(exit code, output)`` instead, and exit codes are not looked at.
        """
        folder.mkdir(parents=True, exist_ok=True)
        source = textwrap.dedent(inspect.getsource(function))
        source = source[source.index("def ") :]
        script = folder / "script.py"
        script.write_text(source)
        (folder / "arguments.pkl").write_bytes(pickle.dumps(arguments))
        request = {
            "script": str(script),
            "name": function.__name__,
            "n": n,
            "folder": str(folder),
            "timeout": timeout,
            "env": env,
        }
        codes = self._ask(request)
        outputs = [(folder / f"output{rank}.txt").read_text() for rank in range(n)]
        if expect_failure:
            return list(zip(codes, outputs, strict=True))
        if any(codes):
            shown = "\n".join(
                f"--- rank {rank}, exit code {code} ({FAILED_TO_END}: timed out)\n{out}"
                for rank, (code, out) in enumerate(zip(codes, outputs, strict=True))
            )
            raise AssertionError(f"ranks failed\n{shown}")
        return [pickle.loads((folder / f"result{rank}.pkl").read_bytes()) for rank in range(n)]

    def close(self) -> None:
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(timeout=30)

    def _ask(self, request) -> list[int]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that forks ranks died")
        return json.loads(answer)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _rank_environment(request, rank, port) -> dict[str, str]:
    n = request["n"]
    here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n}
    here |= {"NODE_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **request["env"]}
    return {name: str(value) for name, value in here.items()}


def _be_rank(request, rank, port) -> int:
    folder = Path(request["folder"])
    with (folder / f"output{rank}.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(_rank_environment(request, rank, port))
    os.chdir(folder)
    try:
        scope = {"__name__": "rank"}
        exec(compile(Path(request["script"]).read_text(), request["script"], "exec"), scope)
        arguments = pickle.loads((folder / "arguments.pkl").read_bytes())
        result = scope[request["name"]](**arguments)
        (folder / f"result{rank}.pkl").write_bytes(pickle.dumps(result))
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    import torch.distributed

    if code == 0 and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _run(request) -> list[int]:
    port = free_port()
    ranks = {}
    for rank in range(request["n"]):
        process = os.fork()
        if process == 0:
            os._exit(_be_rank(request, rank, port))
        ranks[process] = rank
    codes = [FAILED_TO_END] * request["n"]
    deadline = time.monotonic() + request["timeout"]
    while ranks:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            code = os.waitstatus_to_exitcode(status)
            codes[ranks.pop(process)] = code
            if code and deadline > time.monotonic() + 5:
                deadline = time.monotonic() + 5  # the others wait for the dead in vain
        elif time.monotonic() > deadline:
            for left in list(ranks):
                os.kill(left, signal.SIGKILL)
                os.waitpid(left, 0)
                del ranks[left]
        else:
            time.sleep(0.01)
    return codes


def _serve() -> None:
    import numpy.random
    import torch
    import torch.distributed.fsdp
    import torch.distributed.tensor
    import torchmetrics.classification

    import stretto.trainer.parallel.fsdp
    import stretto.trainer.trainer

    torch.set_num_threads(1)
    # The first optimizer imports a thousand modules of torch.
    torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    assert numpy.random, torchmetrics.classification
    assert stretto.trainer.parallel.fsdp, stretto.trainer.trainer
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


if __name__ == "__main__":
    _serve()
