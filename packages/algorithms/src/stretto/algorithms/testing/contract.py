"""What every method must do, as functions that raise `AssertionError` where it doesn't."""

from __future__ import annotations

import copy
import io
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stretto.algorithms.keys import get_item
from stretto.algorithms.testing.loop import Loop, SmallClassifier, random_batch
from stretto.algorithms.torch_shim import seed_global
from stretto.core_events import Algorithm

__all__ = ["CHECKS", "Case"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A method to be checked.

    Attributes:
        make: Makes the method. Called often; must make equal ones.
        make_model: Makes a model with ``loss(outputs, batch)``, a mean over the samples.
        make_batch: Makes the batch of a number.
    """

    make: Callable[[], Algorithm[Any]]
    make_model: Callable[[], nn.Module] = SmallClassifier
    make_batch: Callable[[int], Any] = random_batch

    def loop(self, algorithm: Algorithm[Any] | None = None, **options: Any) -> Loop:
        """Return a loop with the method, over a model that is the same each time."""
        before = torch.get_rng_state()
        seed_global(0)
        model = options.pop("model", None) or self.make_model()
        torch.set_rng_state(before)
        return Loop(model=model, algorithms=[algorithm or self.make()], **options)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _require_equal(
    left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor], what: str
) -> None:
    _require(left.keys() == right.keys(), f"{what}: the names differ")
    for name, tensor in left.items():
        _require(torch.equal(tensor, right[name]), f"{what}: {name} differs")


def check_copies(case: Case) -> None:
    """A method, and the model it is applied to, can be deep-copied and pickled in mid-run."""
    loop = case.loop()
    for index in range(2):
        loop.train_batch(case.make_batch(index))
    method = loop.algorithms[0]
    for other in (copy.deepcopy(method), pickle.loads(pickle.dumps(method))):
        _require(type(other) is type(method), "a copy is of another type")
    stored = io.BytesIO()
    torch.save(loop.model, stored)
    stored.seek(0)
    restored: nn.Module = torch.load(stored, weights_only=False)
    images = case.make_batch(2)
    for other in (copy.deepcopy(loop.model), restored):
        same = torch.equal(other.eval()(images), loop.model.eval()(images))
        _require(same, "a copy of the model computes something else")


def check_resumes(case: Case) -> None:
    """A run that is resumed from state dicts ends exactly as one that was not interrupted."""
    whole = case.loop()
    for index in range(4):
        whole.train_batch(case.make_batch(index))
    first = case.loop()
    for index in range(2):
        first.train_batch(case.make_batch(index))
    stored = io.BytesIO()
    torch.save(
        {
            "model": first.model.state_dict(),
            "optimizer": first.optimizer.state_dict(),
            "algorithm": first.algorithms[0].state_dict(),
        },
        stored,
    )
    stored.seek(0)
    loaded = torch.load(stored, weights_only=True)
    second = case.loop()
    second.model.load_state_dict(loaded["model"])
    second.optimizer.load_state_dict(loaded["optimizer"])
    second.algorithms[0].load_state_dict(loaded["algorithm"])
    second.state.timestamp = first.state.timestamp
    for index in range(2, 4):
        second.train_batch(case.make_batch(index))
    _require_equal(_weights(whole.model), _weights(second.model), "resumed")


def check_reproducible(case: Case) -> None:
    """Two runs are equal to the bit, whatever the global generators do; and those stay put."""
    results: list[dict[str, torch.Tensor]] = []
    for start in (1, 2):
        seed_global(start)
        random.seed(start)
        loop = case.loop()
        before = (torch.get_rng_state(), random.getstate())
        for index in range(2):
            loop.train_batch(case.make_batch(index))
        _require(torch.equal(before[0], torch.get_rng_state()), "torch's generator was moved")
        _require(before[1] == random.getstate(), "Python's generator was moved")
        results.append(_weights(loop.model))
    _require_equal(results[0], results[1], "the second run")


def check_microbatches(case: Case) -> None:
    """The gradients are those of the whole batch, for every microbatch size."""
    expected: dict[str, torch.Tensor] | None = None
    for size in (8, 4, 2, 1):
        loop = case.loop(microbatch_size=size)
        loop.gradients(case.make_batch(0))
        found = {n: p.grad for n, p in loop.model.named_parameters() if p.grad is not None}
        expected = expected or found
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def check_targets(case: Case) -> None:
    """Metrics see the user's targets after the loss, and so does whoever looks after the batch."""
    loop = case.loop(microbatch_size=4)
    batch = case.make_batch(0)
    copies = [part.clone() for part in batch]
    loop.train_batch(batch)
    _require(torch.equal(torch.cat(loop.targets), copies[1]), "a microbatch's target was changed")
    _require(torch.equal(get_item(loop.state.batch, 1), copies[1]), "the batch's target is changed")
    for part, original in zip(batch, copies, strict=True):
        _require(torch.equal(part, original), "the user's own tensors were changed")


def check_bfloat16(case: Case) -> None:
    """It works under autocast, with finite losses close to those in 32 bits."""
    batch = case.make_batch(0)
    loss = case.loop(autocast=torch.bfloat16).train_batch(batch)
    reference = case.loop().train_batch(batch)
    _require(abs(loss - reference) < 0.05 * abs(reference) + 0.05, f"{loss} is not {reference}")


def check_channels_last(case: Case) -> None:
    """Memory formats of weights and batches stay, and results don't depend on them."""
    images, target = case.make_batch(0)
    plain = case.loop()
    loop = case.loop(model=copy.deepcopy(case.loop().model).to(memory_format=torch.channels_last))
    losses = [
        plain.gradients((images, target)),
        loop.gradients((images.to(memory_format=torch.channels_last), target)),
    ]
    _require(abs(losses[0] - losses[1]) < 1e-4, f"the losses are {losses}")
    seen = get_item(loop.state.batch, 0)
    _require(seen.is_contiguous(memory_format=torch.channels_last), "the batch's format is lost")
    for name, parameter in loop.model.named_parameters():
        if parameter.dim() == 4:
            kept = parameter.is_contiguous(memory_format=torch.channels_last)
            _require(kept, f"the format of {name} is lost")


def check_meta(case: Case) -> None:
    """It applies to a model without values, which is given them afterwards."""
    with torch.device("meta"):
        model = case.make_model()
    hollow = Loop(model=model, algorithms=[case.make()], make_optimizer=_no_optimizer)
    tensors = [*model.parameters(), *model.buffers()]
    _require(all(tensor.is_meta for tensor in tensors), "something was given values")
    reference = case.loop().model
    model.to_empty(device="cpu")
    hollow.model.load_state_dict(reference.state_dict())
    batch = case.make_batch(0)
    _require(torch.equal(model.eval()(batch), reference.eval()(batch)), "the outputs differ")


def check_fullgraph(case: Case) -> None:
    """The model compiles without a graph break, for training and for evaluation."""
    loop = case.loop()
    images = case.make_batch(0)[0]
    for mode in (True, False):
        loop.model.train(mode)
        torch.compiler.reset()
        compiled = torch.compile(loop.model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(images), loop.model(images), rtol=1e-4, atol=1e-5)


def _no_optimizer(parameters: Iterator[nn.Parameter]) -> Optimizer:
    del parameters
    return torch.optim.SGD([torch.zeros(1)], lr=0.0)


CHECKS: Mapping[str, Callable[[Case], None]] = MappingProxyType(
    {
        check.__name__.removeprefix("check_"): check
        for check in (
            check_copies,
            check_resumes,
            check_reproducible,
            check_microbatches,
            check_targets,
            check_bfloat16,
            check_channels_last,
            check_meta,
            check_fullgraph,
        )
    }
)
"""The contract, by name."""
