"""Bad input is one clear error at construction, and leaves nothing half-made behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rundir_uploader import IncompleteUploadError
from stretto.core_events import Algorithm, Callback, Event
from stretto.core_events.errors import CallbackInUseError, EngineClosedError
from stretto.run_directory import get_node_run_directory
from stretto.trainer import ComposerClassifier, ComposerModel, Trainer
from stretto.trainer.build import BUILD_ORDER


def make_data(samples: int = 8) -> TensorDataset:
    return TensorDataset(torch.randn(samples, 4), torch.randint(0, 3, (samples,)))


def make_model() -> ComposerClassifier:
    return ComposerClassifier(nn.Linear(4, 3), num_classes=3)


def make_trainer(**arguments) -> Trainer:
    defaults = {
        "model": make_model(),
        "train_dataloader": DataLoader(make_data(), batch_size=4),
        "max_duration": "1ep",
        "progress_bar": False,
    }
    return Trainer(**{**defaults, **arguments})


class Watch(Callback):
    """Notes what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def init(self, state, logger):
        self.calls.append("init")

    def fit_end(self, state, logger):
        self.calls.append("fit_end")

    def close(self, state, logger):
        self.calls.append("close")

    def post_close(self):
        self.calls.append("post_close")


class NoParameters(ComposerModel):
    def forward(self, batch):
        return batch

    def loss(self, outputs, batch, *args, **kwargs):
        return outputs


def drop_all() -> DataLoader:
    return DataLoader(make_data(3), batch_size=4, drop_last=True)


WRONG = [
    ({"model": nn.Linear(4, 3)}, TypeError, "got Linear: wrap it in ComposerClassifier"),
    ({"model": 3}, TypeError, "model must be a ComposerModel, got int"),
    ({"model": NoParameters()}, ValueError, "NoParameters has no parameters that require"),
    ({"train_dataloader": []}, ValueError, "train_dataloader is empty"),
    ({"train_dataloader": drop_all()}, ValueError, "train_dataloader is empty.*drop_last"),
    ({"train_dataloader": 3}, ValueError, "iterable of batches, got int"),
    ({"train_dataloader_label": ""}, ValueError, "train_dataloader_label must not be empty"),
    ({"eval_dataloader": drop_all()}, ValueError, "evaluation dataloader 'eval' is empty"),
    ({"max_duration": "2 epochs"}, ValueError, "'2 epochs' is not a time"),
    ({"max_duration": "1.5ep"}, ValueError, "1.5ep"),
    ({"max_duration": "0.5dur"}, ValueError, "fraction of itself"),
    ({"max_duration": -1}, ValueError, "negative"),
    ({"scale_schedule_ratio": 0.0}, ValueError, "scale_schedule_ratio must be above 0"),
    ({"scale_schedule_ratio": 0.1}, ValueError, "leaves nothing of 1ep"),
    ({"train_subset_num_batches": 0}, ValueError, "train_subset_num_batches must be -1"),
    ({"eval_subset_num_batches": -2}, ValueError, "eval_subset_num_batches must be -1"),
    ({"eval_dataloader": DataLoader(make_data()), "eval_interval": "5x"}, ValueError, "'5x'"),
    ({"device_train_microbatch_size": 0}, ValueError, "of at least 1.*got 0"),
    ({"device_train_microbatch_size": "auto"}, ValueError, "got 'auto'"),
    ({"device_train_microbatch_size": 2.5}, ValueError, r"got 2\.5"),
    ({"seed": -1}, ValueError, "seed must not be negative, got -1"),
    ({"precision": "fp64"}, ValueError, "'fp64'"),
    ({"precision": "amp_fp16", "device": "cpu"}, ValueError, "amp_fp16"),
    ({"device": "abacus"}, ValueError, "abacus"),
    ({"dist_timeout": 0.0}, ValueError, "dist_timeout"),
    ({"parallelism_config": {"pipeline": {}}}, ValueError, "pipeline"),
    ({"algorithms": Watch()}, TypeError, "algorithms must hold Algorithm objects, got Watch"),
    ({"callbacks": [3]}, TypeError, "callbacks must hold Callback objects, got int"),
    ({"loggers": Watch()}, TypeError, "loggers must hold LoggerDestination objects, got Watch"),
    ({"optimizers": 3}, TypeError, "optimizers must hold Optimizer objects, got int"),
    ({"schedulers": 3}, TypeError, "schedulers must be torch schedulers or functions"),
    ({"load_path": "nowhere.pt"}, FileNotFoundError, "no checkpoint at .*nowhere.pt"),
    ({"save_folder": "x", "save_filename": "{nonsense}.pt"}, ValueError, "nonsense"),
    ({"save_folder": "x", "save_interval": "1 ep och"}, ValueError, "1 ep och"),
    ({"run_directory": ""}, (ValueError, OSError), "run directory"),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), WRONG, ids=lambda value: str(value)[:60])
def test_wrong_input_is_one_clear_error_and_nothing_is_left(arguments, kind, message):
    watch = Watch()
    arguments = {"run_directory": "run", "callbacks": watch, **arguments}
    with pytest.raises(kind, match=message):
        make_trainer(**arguments)
    assert watch.calls == []
    assert list(Path().iterdir()) == []


def test_a_run_directory_that_is_a_file_is_an_error_that_names_it():
    Path("taken").write_text("mine")
    with pytest.raises(OSError, match="taken"):
        make_trainer(run_directory="taken")
    assert Path("taken").read_text() == "mine"
    assert [path.name for path in Path().iterdir()] == ["taken"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"not a checkpoint"])
def test_a_torn_checkpoint_is_an_error_that_names_it_and_closes_what_was_open(content):
    Path("torn.pt").write_bytes(content)
    watch = Watch()
    with pytest.raises(RuntimeError, match=r"torn\.pt"):
        make_trainer(load_path="torn.pt", callbacks=watch, run_directory="run")
    assert watch.calls == ["init", "close", "post_close"]
    assert [path.name for path in Path().iterdir()] == ["torn.pt"]


def test_a_failure_at_init_closes_the_others_and_removes_empty_folders():
    class Fails(Callback):
        def init(self, state, logger):
            raise OSError("no disk")

    watch = Watch()
    with pytest.raises(OSError, match="no disk"):
        make_trainer(callbacks=[watch, Fails()], run_directory="deep/run")
    assert watch.calls == ["init", "close", "post_close"]
    assert not Path("deep").exists()
    assert "STRETTO_RUN_DIRECTORY" not in os.environ
    assert "COMPOSER_RUN_DIRECTORY" not in os.environ
    make_trainer(callbacks=watch).close()


def test_a_loader_that_turns_out_empty_is_an_error():
    class Empty(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    with (
        make_trainer(train_dataloader=DataLoader(Empty()), max_duration="2ba") as trainer,
        pytest.raises(ValueError, match="yielded no batch"),
    ):
        trainer.fit()


def test_an_iterator_that_is_used_up_is_an_error_that_says_so():
    batches = iter([(torch.randn(2, 4), torch.zeros(2).long())])
    with (
        make_trainer(train_dataloader=batches, max_duration="2ba") as trainer,
        pytest.raises(ValueError, match="an iterator can be used for one epoch only"),
    ):
        trainer.fit()


def test_fit_without_data_or_duration_is_an_error_that_names_what_is_missing():
    with make_trainer(train_dataloader=None) as trainer:
        with pytest.raises(ValueError, match="pass train_dataloader"):
            trainer.fit()
        trainer.fit(train_dataloader=DataLoader(make_data(), batch_size=4))
    with (
        make_trainer(max_duration=None) as trainer,
        pytest.raises(ValueError, match="pass max_duration"),
    ):
        trainer.fit()
    with (
        make_trainer(max_duration="2iter") as trainer,
        pytest.raises(ValueError, match=r"2iter is in iterations.*iteration_length"),
    ):
        trainer.fit()
    with make_trainer() as trainer, pytest.raises(ValueError, match="duration must be above 0"):
        trainer.fit(duration="0ba")


def test_wrong_losses_are_errors():
    class Wrong(ComposerClassifier):
        def loss(self, outputs, batch, *args, **kwargs):
            return "large"

    with (
        make_trainer(model=Wrong(nn.Linear(4, 3))) as trainer,
        pytest.raises(ValueError, match=r"model\.loss must return a tensor.*got str"),
    ):
        trainer.fit()


def test_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="max_durations"):
        make_trainer(max_durations="1ep")


def test_a_callback_of_another_open_trainer_is_refused():
    watch = Watch()
    first = make_trainer(callbacks=watch)
    with pytest.raises(CallbackInUseError, match="Watch is still open"):
        make_trainer(callbacks=watch)
    assert watch.calls == ["init"]
    first.close()
    make_trainer(callbacks=watch).close()


def test_a_closed_trainer_is_refused():
    trainer = make_trainer()
    trainer.close()
    trainer.close()
    with pytest.raises(EngineClosedError):
        trainer.fit()


def test_everyone_is_closed_also_when_training_fails():
    class Fails(Callback):
        def batch_end(self, state, logger):
            raise RuntimeError("disk full")

    watch = Watch()
    with (
        pytest.raises(RuntimeError, match="disk full"),
        make_trainer(callbacks=[watch, Fails()]) as trainer,
    ):
        trainer.fit()
    assert watch.calls == ["init", "close", "post_close"]


def test_an_incomplete_upload_comes_out_of_fit_as_it_is():
    """Not in an ExceptionGroup, and the trainer can still be closed."""

    class Uploader(Callback):
        def fit_end(self, state, logger):
            raise IncompleteUploadError([("a.txt", "refused")])

    watch = Watch()
    trainer = make_trainer(callbacks=[watch, Uploader()])
    with pytest.raises(IncompleteUploadError) as caught:
        trainer.fit()
    assert caught.type is IncompleteUploadError
    assert [tuple(entry) for entry in caught.value.missing] == [("a.txt", "refused")]
    trainer.close()
    assert watch.calls[-2:] == ["close", "post_close"]


def test_several_failures_while_closing_come_as_a_group():
    class Fails(Callback):
        def post_close(self):
            raise OSError("a")

    class FailsToo(Callback):
        def close(self, state, logger):
            raise ValueError("b")

    watch = Watch()
    trainer = make_trainer(callbacks=[Fails(), FailsToo(), watch])
    with pytest.raises(ExceptionGroup) as caught:
        trainer.close()
    assert {type(error) for error in caught.value.exceptions} == {OSError, ValueError}
    assert watch.calls == ["init", "close", "post_close"]


def test_the_run_directory_is_made_where_asked_and_exported():
    with make_trainer(run_directory="runs/mine", callbacks=Watch()):
        assert Path("runs/mine/rank_0").is_dir()
        assert os.environ["STRETTO_RUN_DIRECTORY"] == str(Path("runs/mine").resolve())
        assert get_node_run_directory() == str(Path("runs/mine").resolve())


def test_nothing_is_made_where_nothing_would_be_written():
    with make_trainer() as trainer:
        trainer.fit()
    assert list(Path().iterdir()) == []


def test_the_order_of_the_build_is_data():
    names = [name for name, _ in BUILD_ORDER]
    wanted = ["run directory", "INIT: surgery", "wrap: move, shard, rebind optimizers", "load"]
    assert [name for name in names if name in wanted] == wanted


def test_surgery_at_init_reaches_optimizer_wrapper_and_checkpoint():
    class Widen(Algorithm):
        events = (Event.INIT,)

        def apply(self, event, state, logger):
            old = list(state.model.parameters())
            state.model.module = nn.Sequential(state.model.module, nn.Linear(3, 3))
            new = [p for p in state.model.parameters() if all(p is not o for o in old)]
            state.optimizers[0].add_param_group({"params": new})

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_trainer(model=model, optimizers=optimizer, algorithms=Widen()) as trainer:
        before = model.module[1].weight.detach().clone()
        trainer.fit()
        assert not torch.equal(before, model.module[1].weight)
        assert "module.1.weight" in trainer.state.state_dict()["model"]


def test_the_seed_makes_runs_equal_and_is_torch_s_own_if_that_was_set():
    """G11: the trainer reseeded from the clock though the user had seeded everything."""

    def draws(seed, user_seed):
        if user_seed is not None:
            torch.manual_seed(user_seed)
        with make_trainer(seed=seed) as trainer:
            return trainer.state.rank_zero_seed, torch.rand(1).item()

    assert draws(5, None) == draws(5, 77)
    assert draws(None, 42) == draws(None, 42)
    assert draws(None, 42)[0] == 42
    assert draws(None, 42) != draws(None, 43)


def test_run_names_come_from_the_argument_the_environment_or_chance(monkeypatch):
    with make_trainer(run_name="mine") as trainer:
        assert trainer.state.run_name == "mine"
    monkeypatch.setenv("COMPOSER_RUN_NAME", "theirs")
    with make_trainer() as trainer:
        assert trainer.state.run_name == "theirs"
    monkeypatch.delenv("COMPOSER_RUN_NAME")
    names = set()
    for _ in range(2):
        with make_trainer(seed=1) as trainer:
            names.add(trainer.state.run_name)
            time, adjective, noun = trainer.state.run_name.split("-")
            assert time.isdigit()
            assert adjective.isalpha()
            assert noun.isalpha()
    assert len(names) == 2


def test_the_model_may_not_be_replaced_once_it_is_wrapped():
    with make_trainer() as trainer, pytest.raises(RuntimeError, match="already wrapped"):
        trainer.state.model = make_model()


def seeds_of_ranks():
    import random

    import torch
    from torch import nn

    from stretto.trainer import ComposerClassifier, Trainer

    trainer = Trainer(model=ComposerClassifier(nn.Linear(2, 2)), progress_bar=False)
    state = trainer.state
    names = (state.run_name, state.rank_zero_seed)
    own = (state.seed - state.rank_zero_seed, torch.rand(1).item(), random.random())
    directory = __import__("os").environ["STRETTO_RUN_DIRECTORY"]
    trainer.close()
    return (*names, directory), own


def test_ranks_share_name_seed_and_run_directory_but_draw_their_own_numbers(run_ranks):
    (shared, first), (other, second) = run_ranks(seeds_of_ranks)
    assert shared == other
    assert first[0] == 0
    assert second[0] == 1
    assert first[1] != second[1]
    assert first[2] != second[2]
