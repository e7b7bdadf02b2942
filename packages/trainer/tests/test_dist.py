"""stretto.trainer.dist and the process group: alone, and on real ranks."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from stretto.trainer import dist
from stretto.trainer.devices import DeviceCPU
from stretto.trainer.distributed import initialize_dist


@pytest.fixture
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_one_process_needs_no_group(alone):
    tensor = torch.tensor([1.0, 2.0])
    dist.initialize_dist("cpu")
    dist.barrier()
    dist.all_reduce(tensor)
    dist.broadcast(tensor)
    objects = ["a", {"b": 1}]
    dist.broadcast_object_list(objects)

    assert not dist.is_initialized()
    assert dist.get_world_size() == dist.get_local_world_size() == 1
    assert dist.get_global_rank() == dist.get_local_rank() == dist.get_node_rank() == 0
    assert tensor.tolist() == [1.0, 2.0]
    assert objects == ["a", {"b": 1}]
    assert [t.tolist() for t in dist.all_gather(tensor)] == [[1.0, 2.0]]
    assert dist.all_gather_object("x") == ["x"]


def test_collectives_before_the_group_is_up_say_what_to_call(alone, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"dist\.barrier .* 2 processes .*initialize_dist"):
        dist.barrier()


def test_an_unknown_reduction_is_named(alone):
    with pytest.raises(ValueError, match=r"'MEAN'.*SUM"):
        dist.all_reduce(torch.ones(1), "MEAN")


def test_a_world_without_a_master_names_what_is_missing(alone, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ValueError, match=r"2 ranks, but not MASTER_ADDR,"):
        initialize_dist(DeviceCPU())


def test_a_timeout_must_be_positive(alone):
    with pytest.raises(ValueError, match="dist_timeout is 0"):
        initialize_dist("cpu", timeout=0)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [8, 11])
def test_samplers_of_all_ranks_share_out_a_dataset(length, drop_last):
    dataset = TensorDataset(torch.arange(length))
    shares = []
    for rank in range(3):
        sampler = dist.get_sampler(
            dataset, shuffle=True, drop_last=drop_last, num_replicas=3, rank=rank, seed=5
        )
        sampler.set_epoch(2)
        shares.append(list(sampler))
    every = [index for share in shares for index in share]

    assert len({len(share) for share in shares}) == 1
    assert len(every) == (length // 3 if drop_last else -(-length // 3)) * 3
    # Repetitions fill up the last round only, so fewer than one a rank.
    assert len(every) - len(set(every)) < 3
    assert set(every) <= set(range(length))
    assert drop_last or set(every) == set(range(length))


def test_a_sampler_takes_its_share_from_the_environment(alone, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    sampler = dist.get_sampler(TensorDataset(torch.arange(8)))
    assert list(sampler) == [3, 7]


def test_a_dataset_without_length_gets_no_sampler():
    class Stream(IterableDataset):
        def __iter__(self):
            yield 1

    with pytest.raises(ValueError, match="Stream has no length"):
        dist.get_sampler(Stream())


def test_collectives_on_ranks(run_ranks):
    def body():
        import torch

        from stretto.trainer import dist

        dist.initialize_dist("cpu", timeout=60)
        dist.initialize_dist("cpu", timeout=60)
        rank = dist.get_global_rank()
        summed = torch.tensor([1.0, float(rank)])
        dist.all_reduce(summed)
        largest = torch.tensor([rank])
        dist.all_reduce(largest, "max")
        told = torch.tensor([rank + 10])
        dist.broadcast(told, src=1)
        objects = [f"from {rank}"]
        dist.broadcast_object_list(objects, src=1)
        dist.barrier()
        return {
            "sum": summed.tolist(),
            "max": largest.tolist(),
            "broadcast": told.tolist(),
            "objects": objects,
            "gather": [t.tolist() for t in dist.all_gather(torch.tensor([rank]))],
            "gather_object": dist.all_gather_object({"rank": rank}),
            "sizes": (dist.get_world_size(), dist.get_local_world_size(), dist.get_node_rank()),
        }

    for rank in run_ranks(body, n=2):
        assert rank == {
            "sum": [2.0, 1.0],
            "max": [1],
            "broadcast": [11],
            "objects": ["from 1"],
            "gather": [[0], [1]],
            "gather_object": [{"rank": 0}, {"rank": 1}],
            "sizes": (2, 2, 0),
        }


def test_an_outcome_reaches_ranks_that_wait_longer_than_a_collective_may(run_ranks):
    """Field report A12: no collective is held open while one rank writes."""

    def body():
        import time

        from stretto.trainer.distributed import Topology, initialize_dist, share_outcome

        initialize_dist("cpu", timeout=1.0)
        topology = Topology.from_environment()

        def slow():
            time.sleep(3.0)
            return "written"

        (outcome,) = share_outcome(topology, slow)
        return outcome.value, outcome.rank, outcome.error

    assert run_ranks(body) == [("written", 0, None)] * 2


def test_a_failure_on_one_rank_is_known_to_all_at_once(run_ranks):
    """Field report A14: the others learn it within seconds, not after a barrier's timeout."""

    def body():
        import time

        from stretto.trainer.distributed import Topology, initialize_dist, share_outcome

        initialize_dist("cpu", timeout=300)
        topology = Topology.from_environment()
        begin = time.monotonic()

        def fail():
            raise OSError("disk full")

        try:
            outcomes = share_outcome(topology, fail, workers=(1,))
        except OSError as error:
            return f"raised {error}", time.monotonic() - begin
        return outcomes[0].error, time.monotonic() - begin

    (said, waited), (raised, _) = run_ranks(body)
    assert said == "OSError: disk full"
    assert raised == "raised disk full"
    assert waited < 5
