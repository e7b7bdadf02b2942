"""The seed documents' code blocks that need several packages, with our names for Composer's.

The blocks are kept as text and run as written, each in a fresh process where the document sets an
environment variable or starts one. Blocks of one package are tested beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.object_store.conformance.running import serving
from stretto.object_store.conformance.servers import ACCESS_KEY, SECRET_KEY, Rclone

COMMANDS = Path(sys.executable).parent

PARTS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from stretto.trainer import ComposerClassifier, Event, Trainer
torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 4), torch.randint(0, 3, (16,)))
dataset = data
model = ComposerClassifier(nn.Linear(4, 3), num_classes=3)
train_dataloader = eval_dataloader = DataLoader(data, batch_size=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

UPLOADER = """
osphparams = ObjectStoreProviderHparams(
    provider="s3",
    container="run-dir-test",
    key_environ="OBJECT_STORE_KEY",
    secret_environ="OBJECT_STORE_SECRET",
    region="us-west-2",
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
)
# trainer will run this callback whenever the EPOCH_END
# is triggered, like this:
_ = trainer.engine.run_event(Event.EPOCH_END)
"""

RUN_DIRECTORY = """
import os
os.environ['STRETTO_RUN_DIRECTORY'] = "./path/to/my_run_directory"
from stretto import run_directory
print(os.path.relpath(run_directory.get_run_directory()))
"""

SAMPLER = """
from stretto.trainer import dist

sampler = dist.get_sampler(dataset, shuffle=True)
dataloader = DataLoader(dataset, batch_size=4, sampler=sampler)
"""


@pytest.fixture(scope="module")
def rclone() -> Iterator[Rclone]:
    yield from serving(Rclone)


def clean_environment(**more: str) -> dict[str, str]:
    ours = ("STRETTO_RUN", "COMPOSER_", "AWS_", "S3_", "RANK", "LOCAL_RANK", "WORLD_SIZE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"OMP_NUM_THREADS": "1", "AWS_EC2_METADATA_DISABLED": "true"} | more


def run(*command: str, cwd: Path, code: int = 0, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_python(*blocks: str, cwd: Path, **environment: str) -> str:
    script = cwd / "block.py"
    script.write_text("\n".join(textwrap.dedent(block) for block in blocks))
    return run(sys.executable, str(script), cwd=cwd, **environment)


@pytest.mark.server
def test_document_000_the_uploader_with_its_credentials_on_a_real_s3_server(tmp_path, rclone):
    rclone.make_bucket("run-dir-test")
    imports = """
    from rundir_uploader import RunDirectoryUploader
    from stretto.object_store import ObjectStoreProviderHparams
    """
    rest = """
    from pathlib import Path
    from stretto.run_directory import get_run_directory
    note = Path(get_run_directory()) / "note.txt"
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text("written during the run")
    trainer.fit()
    trainer.close()
    print(run_directory_uploader.get_uri_for_uploaded_file(note))
    """
    uri = run_python(
        PARTS,
        imports,
        UPLOADER,
        rest,
        cwd=tmp_path,
        OBJECT_STORE_KEY=ACCESS_KEY,
        OBJECT_STORE_SECRET=SECRET_KEY,
        S3_ENDPOINT_URL=rclone.url,
    ).splitlines()[-1]
    scheme, _, key = uri.partition("://")
    assert scheme == "s3"
    assert (rclone.objects / key).read_text() == "written during the run"
    assert key.split("/")[0] == "run-dir-test"
    assert key.split("/")[2:] == ["rank_0", "note.txt"]


def test_document_002_the_variable_moves_the_run_directory(tmp_path):
    assert run_python(RUN_DIRECTORY, cwd=tmp_path) == "path/to/my_run_directory/rank_0\n"
    composer = RUN_DIRECTORY.replace("STRETTO_", "COMPOSER_")
    assert run_python(composer, cwd=tmp_path) == "path/to/my_run_directory/rank_0\n"


@pytest.mark.slow
def test_document_002_the_launchers_flag_moves_the_run_directory_of_every_rank(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "from stretto.run_directory import get_run_directory\n"
        "open(f\"seen-{os.environ['RANK']}\", 'w').write(get_run_directory())\n"
    )
    where = str(tmp_path / "path" / "to" / "run" / "directory")
    launcher = str(COMMANDS / "stretto")
    run(launcher, "--run_directory", where, "-n", "2", str(script), cwd=tmp_path)
    assert [(tmp_path / f"seen-{rank}").read_text() for rank in (0, 1)] == [
        f"{where}/rank_0",
        f"{where}/rank_1",
    ]


@pytest.mark.slow
def test_document_003_section_12_ranks_see_different_samples_with_the_sampler_only(tmp_path):
    script = tmp_path / "script.py"
    train = """
    trainer = Trainer(model=model, train_dataloader=dataloader, max_duration="1ep",
                      optimizers=optimizer, progress_bar=False)
    trainer.fit()
    open(f"indices-{dist.get_global_rank()}", "w").write(" ".join(map(str, list(sampler))))
    trainer.close()
    """
    script.write_text("\n".join(map(textwrap.dedent, (PARTS, SAMPLER, train))))
    launcher = str(COMMANDS / "stretto")
    run(launcher, "-n", "2", "--run_directory", "runs/a", str(script), cwd=tmp_path)
    indices = [set((tmp_path / f"indices-{rank}").read_text().split()) for rank in (0, 1)]
    assert not indices[0] & indices[1]
    assert indices[0] | indices[1] == {str(index) for index in range(16)}

    script.write_text(script.read_text().replace(", sampler=sampler", ""))
    run(launcher, "-n", "2", "--run_directory", "runs/b", str(script), cwd=tmp_path, code=1)
    (errors,) = (tmp_path / "runs" / "b" / "logs").glob("rank_1.stderr.txt")
    assert "get_sampler" in errors.read_text()


def test_all_four_methods_work_together_whatever_the_microbatch_size(tmp_path):
    block = """
    from stretto.algorithms import BlurPool, GradientClipping, LabelSmoothing, MixUp
    losses = []
    for size in (8, 2):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1),
                                nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.Flatten(),
                                nn.Linear(16 * 16, 3))
        images = TensorDataset(torch.randn(16, 1, 8, 8), torch.randint(0, 3, (16,)))
        model = ComposerClassifier(network, num_classes=3)
        trainer = Trainer(
            model=model, train_dataloader=DataLoader(images, batch_size=8), max_duration="2ep",
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1), seed=5, progress_bar=False,
            algorithms=[BlurPool(), LabelSmoothing(0.1), MixUp(alpha=1.0),
                        GradientClipping("norm", 0.5)],
            device_train_microbatch_size=size)
        trainer.fit()
        losses.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        trainer.close()
    print(float((losses[0] - losses[1]).abs().max()))
    """
    printed = run_python(PARTS, block, cwd=tmp_path)
    assert float(printed) < 1e-5
