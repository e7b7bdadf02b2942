"""What the documentation promises of checkpoints, ranks and samplers, each promise held to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stretto.core_events import Algorithm, Event
from stretto.trainer import ComposerClassifier, Trainer, dist


def make_trainer(**arguments):
    """A trainer of one layer on 24 samples in batches of 4."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 4), torch.arange(24) % 3)
    defaults = {
        "model": ComposerClassifier(nn.Linear(4, 3), num_classes=3),
        "train_dataloader": DataLoader(data, batch_size=4),
        "max_duration": "2ep",
        "progress_bar": False,
    }
    return Trainer(**{**defaults, **arguments})


def test_a_load_path_with_a_variable_lies_in_the_save_folder_it_names():
    arguments = {"run_directory": "rd", "save_folder": "{run_directory}/ck"}
    with make_trainer(**arguments) as first:
        first.fit(duration="1ep")
    with make_trainer(**arguments, load_path="{run_directory}/ck/latest-rank0.pt") as second:
        assert second.state.timestamp.batch_count == 6
        second.fit()
        assert second.state.timestamp.batch_count == 12


class Surgery(Algorithm):
    """Changes what the layer computes, and leaves its weights' names and shapes alone."""

    events = (Event.INIT,)

    def apply(self, event, state, logger):
        state.model.module.register_forward_hook(lambda module, inputs, output: -output)

    @staticmethod
    def required_on_load() -> bool:
        return True


@pytest.mark.parametrize("saved_weights_only", [False, True])
def test_weights_of_a_changed_model_are_refused_without_what_changed_it(saved_weights_only):
    with make_trainer(algorithms=Surgery()) as first:
        first.fit(duration="1ba")
        path = first.save_checkpoint("saved.pt", weights_only=saved_weights_only)
        weights = {name: t.clone() for name, t in first.state.model_state_dict().items()}
    with pytest.raises(ValueError, match="changed by Surgery"):
        make_trainer(load_path=path, load_weights_only=True)
    with make_trainer(load_path=path, load_weights_only=True, algorithms=Surgery()) as second:
        loaded = second.state.model_state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


def metrics_on_ranks(load):
    """Each rank's counts and the accuracy over all, of a run cut in mid-epoch and resumed."""
    import logging

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from stretto.core_events import Callback
    from stretto.trainer import ComposerClassifier, Trainer, dist

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("stretto.trainer.serialization").addHandler(handler)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 4), torch.arange(32) % 3)

    def states(trainer):
        metrics = {"train": trainer.state.train_metrics, **trainer.state.eval_metrics}
        return {
            f"{label}/{name}/{key}": getattr(metric, key).tolist()
            for label, group in metrics.items()
            for name, metric in group.items()
            for key in metric._defaults
        }

    class Save(Callback):
        def batch_checkpoint(self, state, logger):
            if state.timestamp.batch_count == 2:
                path = self.trainer.save_checkpoint("saved.pt")
                found.append((dist.all_gather_object(path)[0], states(self.trainer)))

    found = []

    def make(path=None, callbacks=()):
        torch.manual_seed(0)
        loader = DataLoader(data, batch_size=4, sampler=dist.get_sampler(data))
        return Trainer(
            model=ComposerClassifier(nn.Linear(4, 3), num_classes=3),
            train_dataloader=loader,
            eval_dataloader=loader,
            eval_interval="2ba",
            max_duration="1ep",
            save_metrics=True,
            load_path=path,
            callbacks=callbacks,
            progress_bar=False,
            run_directory="run",
            device="cpu",
        )

    if load is None:
        save = Save()
        with make(callbacks=[save]) as save.trainer:
            save.trainer.fit(duration="3ba")
        ((path, before),) = found
    with make(load or path) as resumed:
        after = states(resumed)
        resumed.fit()
        values = dict(resumed.state.metric_values)
    if load is not None:
        return after, said
    with make() as straight:
        straight.fit()
        return path, before, after, values, dict(straight.state.metric_values)


def test_each_rank_gets_its_own_metrics_back_and_another_number_of_ranks_none(run_ranks):
    ranks = run_ranks(metrics_on_ranks, load=None)
    for _, before, after, values, straight in ranks:
        assert before == after
        assert values == straight
    for key in ranks[0][1]:
        if key.startswith("train/") and key.endswith(("tp", "sum_loss")):
            assert ranks[0][1][key] != ranks[1][1][key]
    after, said = metrics_on_ranks(ranks[0][0])
    assert not any(torch.tensor(value).any() for key, value in after.items() if "train" in key)
    assert any("metrics of 2 ranks and this run has 1" in line for line in said)


def warnings_of_ddp():
    import warnings

    import torch
    from torch import nn

    from stretto.trainer.devices import DeviceCPU
    from stretto.trainer.distributed import Topology, initialize_dist
    from stretto.trainer.parallel import make_strategy

    device = DeviceCPU()
    initialize_dist(device, timeout=20)
    topology = Topology.from_environment()
    model = nn.BatchNorm1d(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        strategy = make_strategy(None, topology, device)
        prepared = strategy.prepare(model, [optimizer], device)
    # Buffers stay each rank's own in the forward pass.
    model.running_mean.fill_(topology.global_rank)
    prepared.module.eval()(torch.ones(2, 2))
    told = [str(warning.message) for warning in caught if warning.category is FutureWarning]
    return told, model.running_mean.tolist()


def test_ddp_wraps_without_a_warning_and_leaves_buffers_alone_in_the_forward_pass(run_ranks):
    assert run_ranks(warnings_of_ddp) == [([], [0.0, 0.0]), ([], [1.0, 1.0])]


def test_names_of_checkpoints_stay_in_the_folder(tmp_path, monkeypatch):
    home = tmp_path / "home"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(home))
    with make_trainer() as trainer:
        for name in ("../out{batch}.pt", "a/../../out.pt", f"{tmp_path}/here/../out.pt"):
            with pytest.raises(ValueError, match=r"leads out of the folder.* without '\.\.'"):
                trainer.save_checkpoint(name)
        assert trainer.save_checkpoint("~/x.pt") == str(home / "x.pt")
        assert trainer.save_checkpoint(f"{tmp_path}/whole.pt") == str(tmp_path / "whole.pt")
        assert (home / "x.pt").is_file()
    assert not list(tmp_path.glob("out*"))
    assert not Path("~").exists()
    with pytest.raises(ValueError, match=r"save_filename is '~/x\.pt'"):
        make_trainer(save_folder="ck", save_filename="~/x.pt")


@pytest.mark.parametrize(("samples", "drop_last"), [(1, True), (3, True), (0, False)])
def test_a_sampler_that_would_give_a_rank_nothing_is_refused(samples, drop_last):
    data = TensorDataset(torch.zeros(samples, 1))
    with pytest.raises(ValueError, match=f"has {samples} samples for 4 ranks"):
        dist.get_sampler(data, num_replicas=4, rank=0, drop_last=drop_last)


def test_a_short_dataset_is_repeated_unless_its_tail_is_dropped():
    data = TensorDataset(torch.zeros(1, 1))
    assert [list(dist.get_sampler(data, num_replicas=4, rank=r)) for r in range(4)] == [[0]] * 4
