"""Saving and loading on several ranks: one writes, all agree."""

from __future__ import annotations

import pytest
import torch


def scenario(what, folder):
    """Several small stories over the same tiny state; which one is ``what``."""
    import random
    import time
    from pathlib import Path

    import numpy as np
    import torch

    from stretto.core_events import Timestamp
    from stretto.trainer import checkpoint
    from stretto.trainer.checkpoint import commit
    from stretto.trainer.distributed import Topology, initialize_dist

    initialize_dist("cpu", timeout=2 if what == "slow write" else 30)

    class State:
        run_name = "ranks"
        timestamp = Timestamp(batch=1)
        topology = Topology.from_environment()
        loaded = None
        extra = None

        def model_state_dict(self):
            return {"weight": torch.arange(6.0).reshape(2, 3)}

        def state_dict(self):
            return {
                "model": self.model_state_dict(),
                "extra": {"rank": self.topology.global_rank, "more": self.extra},
            }

        def load_state_dict(self, state, *, strict=True):
            self.loaded = state

        def load_model_state_dict(self, state_dict, *, strict=True):
            self.loaded = state_dict
            return [], []

    state = State()
    rank = state.topology.global_rank

    def draws():
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def seed(number):
        random.seed(number), np.random.seed(number), torch.manual_seed(number)

    if what == "rng":
        seed(rank)
        draws()
        path = checkpoint.save_checkpoint(state, "a.pt", folder=folder)
        expected = draws()
        seed(99)
        own = checkpoint.load_checkpoint(state, path)
        checkpoint.restore_rng_state(own)
        return expected, draws()

    if what == "one writer":
        saver = checkpoint.CheckpointSaver(folder, "{rank}-{batch}.pt", save_interval="1ba")
        saver.init(state, None)
        path = saver.save(state)
        checkpoint.load_checkpoint(state, path)
        return (
            path,
            saver.saved_checkpoints,
            state.loaded["extra"]["rank"],
            sorted(path.name for path in Path(folder).iterdir()),
        )

    if what == "slow write":
        # Longer than a collective may wait.
        replaced = commit._sync
        commit._sync = lambda path: (time.sleep(5), replaced(path))[1]
        path = checkpoint.save_checkpoint(state, "a.pt", folder=folder)
        return Path(path).exists()

    if what == "write fails":
        if rank == 0:
            state.extra = object()
        began = time.monotonic()
        try:
            checkpoint.save_checkpoint(state, "a.pt", folder=folder)
        except checkpoint.UnsafeCheckpointError as error:
            return (
                str(error),
                time.monotonic() - began < 10,
                [path.name for path in Path(folder).iterdir()],
            )

    if what == "in the way":
        if rank == 0:
            Path(folder, "ep1-ba1-rank0.pt").touch()
        try:
            checkpoint.CheckpointSaver(folder).init(state, None)
        except checkpoint.CheckpointExistsError as error:
            return str(error)

    if what in ("missing", "torn"):
        path = Path(folder, "a.pt")
        if what == "torn" and rank == 0:
            path.touch()
        try:
            checkpoint.load_checkpoint(state, path)
        except checkpoint.CheckpointError as error:
            return type(error).__name__, str(error)

    if what == "only rank 0 sees it":
        # Each rank a folder of its own, like nodes without a shared disk.
        state.extra = {
            "tensors": [torch.tensor(2.5), torch.zeros(0), torch.ones(3, dtype=torch.bfloat16)],
            "view": torch.arange(6).reshape(2, 3).T,
            "flags": torch.tensor([True, False]),
            "float8": torch.ones(2).to(torch.float8_e4m3fn),
        }
        own = Path(folder, f"node{rank}")
        path = checkpoint.save_checkpoint(state, "a.pt", folder=own)
        assert Path(path).exists() == (rank == 0)
        rng = checkpoint.load_checkpoint(state, path)
        more = state.loaded["extra"]["more"]
        more["float8"] = (str(more["float8"].dtype), more["float8"].float())  # for pickle
        return rng is not None, state.loaded

    if what == "other number of ranks":
        return checkpoint.load_checkpoint(state, Path(folder, "a.pt")), state.loaded["extra"]

    return None


def test_each_rank_goes_on_with_its_own_random_numbers(run_ranks, tmp_path):
    """Field report K20: all ranks resumed with rank 0's."""
    ranks = run_ranks(scenario, what="rng", folder=str(tmp_path))
    for expected, drawn in ranks:
        assert drawn == expected
    assert ranks[0] != ranks[1]
    assert len(torch.load(tmp_path / "a.pt")["rng"]) == 2


def test_rank_zero_writes_for_all(run_ranks, tmp_path):
    folder = tmp_path / "c"
    for rank in run_ranks(scenario, what="one writer", folder=str(folder)):
        path = str(folder / "0-1.pt")
        assert rank == (path, [path], 0, ["0-1.pt", "latest-rank0.pt"])


def test_a_write_may_take_longer_than_a_collective_may_wait(run_ranks, tmp_path):
    """Field report A12, decision 9: the ranks wait by polling."""
    assert run_ranks(scenario, what="slow write", folder=str(tmp_path)) == [True, True]


def test_a_failed_write_is_an_error_on_every_rank(run_ranks, tmp_path):
    for message, soon, left in run_ranks(scenario, what="write fails", folder=str(tmp_path)):
        assert message.startswith("state/extra/more is a builtins.object")
        assert soon
        assert not [name for name in left if "pt" in name]


def test_files_in_the_way_are_an_error_on_every_rank(run_ranks, tmp_path):
    messages = run_ranks(scenario, what="in the way", folder=str(tmp_path))
    assert all("ep1-ba1-rank0.pt" in message for message in messages)


@pytest.mark.parametrize(
    ("what", "kind"), [("missing", "CheckpointNotFoundError"), ("torn", "TornCheckpointError")]
)
def test_a_file_that_cannot_be_read_is_the_same_error_on_every_rank(
    run_ranks, tmp_path, what, kind
):
    for name, message in run_ranks(scenario, what=what, folder=str(tmp_path)):
        assert name == kind
        assert "a.pt" in message


def test_ranks_that_cannot_see_the_file_get_it_sent(run_ranks, tmp_path):
    """Field report D13: only rank 0's node holds the file."""
    first, second = run_ranks(scenario, what="only rank 0 sees it", folder=str(tmp_path))
    assert first[0] is second[0] is True
    mine, sent = first[1], second[1]
    assert torch.equal(sent["model"]["weight"], torch.arange(6.0).reshape(2, 3))
    assert sent["extra"]["rank"] == 0
    more, other = mine["extra"]["more"], sent["extra"]["more"]
    for one, two in [*zip(more.pop("tensors"), other.pop("tensors"), strict=True)]:
        assert one.dtype == two.dtype
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert (more["float8"][0], other["float8"][0]) == ("torch.float8_e4m3fn",) * 2
    assert more["float8"][1].tolist() == other["float8"][1].tolist() == [1.0, 1.0]
    assert torch.equal(other["view"], torch.arange(6).reshape(2, 3).T)
    assert torch.equal(other["flags"], torch.tensor([True, False]))


def test_another_number_of_ranks_loads_without_random_state(run_ranks, tmp_path):
    run_ranks(scenario, what="rng", folder=str(tmp_path))
    for n in (1, 3):
        ranks = run_ranks(scenario, n=n, what="other number of ranks", folder=str(tmp_path))
        assert ranks == [(None, {"rank": 0, "more": None})] * n
