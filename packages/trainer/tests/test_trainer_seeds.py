"""Code blocks of the seed documents about the trainer, with our names in place of Composer's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rundir_uploader import RunDirectoryUploader
from stretto.object_store import ObjectStoreProviderHparams
from stretto.run_directory import get_run_directory
from stretto.trainer import ComposerClassifier, Event, Trainer


@pytest.fixture
def parts():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8, 4), torch.randint(0, 3, (8,)))
    model = ComposerClassifier(nn.Linear(4, 3), num_classes=3)
    return {
        "model": model,
        "train_dataloader": DataLoader(data, batch_size=4),
        "eval_dataloader": DataLoader(data, batch_size=4),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }


def test_document_000_uploader_in_a_trainer_and_an_event_without_a_fit(
    parts, monkeypatch, tmp_path
):
    model, optimizer = parts["model"], parts["optimizer"]
    train_dataloader, eval_dataloader = parts["train_dataloader"], parts["eval_dataloader"]
    monkeypatch.setenv("OBJECT_STORE_KEY", str(tmp_path / "stores"))
    (tmp_path / "stores" / "run-dir-test").mkdir(parents=True)

    osphparams = ObjectStoreProviderHparams(
        provider="local",
        container="run-dir-test",
        key_environ="OBJECT_STORE_KEY",
    )
    # construct trainer object with this callback
    run_directory_uploader = RunDirectoryUploader(osphparams)
    trainer = Trainer(
        model=model,
        train_dataloader=train_dataloader,
        eval_dataloader=eval_dataloader,
        optimizers=optimizer,
        max_duration="1ep",
        callbacks=[run_directory_uploader],
        progress_bar=False,
    )
    # trainer will run this callback whenever the EPOCH_END
    # is triggered, like this:
    _ = trainer.engine.run_event(Event.EPOCH_END)

    note = Path(get_run_directory()) / "note.txt"
    note.write_text("written by a callback")
    trainer.fit()
    uri = run_directory_uploader.get_uri_for_uploaded_file(str(note))
    trainer.close()
    assert uri.startswith("local://run-dir-test/")
    key = uri.removeprefix("local://run-dir-test/")
    assert key.endswith("rank_0/note.txt")
    stored = tmp_path / "stores" / "run-dir-test" / key
    assert stored.read_text() == "written by a callback"


def test_document_003_section_7_save_only_model_weights(parts):
    trainer = Trainer(
        model=parts["model"],
        train_dataloader=parts["train_dataloader"],
        max_duration="1ep",
        save_folder="checkpoints",
        save_weights_only=True,
        save_overwrite=True,
        progress_bar=False,
    )

    trainer.fit()

    trainer.close()
    (saved,) = trainer.saved_checkpoints
    content = torch.load(saved, weights_only=True)["state"]
    assert set(content["model"]) == {"module.weight", "module.bias"}
    assert "optimizers" not in content


def test_document_003_section_9_names_of_checkpoints_and_of_the_pointer(parts):
    model, train_dataloader = parts["model"], parts["train_dataloader"]
    trainer = Trainer(
        model=model,
        train_dataloader=train_dataloader,
        max_duration="2ep",
        save_folder="./path/to/checkpoints",
        save_filename="ep{epoch}",
        save_latest_filename="latest",
        save_overwrite=True,
        progress_bar=False,
    )

    trainer.fit()

    trainer.close()
    folder = Path("path/to/checkpoints")
    assert sorted(path.name for path in folder.iterdir()) == ["ep1", "ep2", "latest"]
    assert (folder / "latest").resolve() == (folder / "ep2").resolve()
    assert [Path(path).name for path in trainer.saved_checkpoints] == ["ep1", "ep2"]


def test_a_checkpoint_saved_by_hand_is_loaded_by_a_new_trainer(parts):
    with Trainer(
        model=parts["model"],
        train_dataloader=parts["train_dataloader"],
        max_duration="1ep",
        progress_bar=False,
    ) as trainer:
        trainer.fit()
        path = trainer.save_checkpoint("by-hand/ep{epoch}.pt")
        with pytest.raises(ValueError, match="pass save_folder"):
            trainer.save_checkpoint_to_save_folder()
    other = ComposerClassifier(nn.Linear(4, 3), num_classes=3)
    with Trainer(
        model=other,
        load_path=path,
        load_weights_only=True,
        save_folder="folder",
        progress_bar=False,
    ) as trainer:
        assert trainer.state.timestamp.batch_count == 0
        trainer.save_checkpoint_to_save_folder()
        assert len(trainer.saved_checkpoints) == 1
    for a, b in zip(parts["model"].parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("given", ["latest-rank0.pt", "latest-rank0.pt.symlink"])
def test_k6_a_pointer_that_is_a_text_file_is_a_load_path_too(parts, given, monkeypatch):
    """K6: where the file system knows no symbolic links, the pointer is a text file."""
    monkeypatch.setattr("os.symlink", _no_links)
    common = {"max_duration": "1ep", "train_dataloader": parts["train_dataloader"]}
    first = Trainer(model=parts["model"], save_folder="ck", progress_bar=False, **common)
    first.fit()
    first.close()
    assert Path("ck/latest-rank0.pt.symlink").is_file()
    assert not Path("ck/latest-rank0.pt").exists()
    again = ComposerClassifier(nn.Linear(4, 3), num_classes=3)
    second = Trainer(model=again, load_path=f"ck/{given}", progress_bar=False, **common)
    assert second.state.timestamp.epoch == "1ep"
    for ours, theirs in zip(again.parameters(), parts["model"].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    second.close()


def _no_links(*arguments, **options):
    raise OSError(95, "Operation not supported")
