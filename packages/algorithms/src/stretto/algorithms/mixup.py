"""MixUp: train on mixtures of pairs of samples.

Zhang, Cisse, Dauphin and Lopez-Paz 2017, "mixup: Beyond Empirical Risk Minimization",
arXiv:1710.09412. With ``l ~ Beta(alpha, alpha)`` and ``t = min(l, 1 - l)``, a sample becomes
``(1 - t) x + t x'`` with another sample ``x'`` of the batch, and its target, or its loss, likewise.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch

from stretto.algorithms.errors import BatchFormatError
from stretto.algorithms.keys import BatchKey, check_key
from stretto.algorithms.pairing import (
    PairedTargets,
    Pairing,
    combine_losses,
    loss_of_partners,
)
from stretto.algorithms.randomness import keyed_generator
from stretto.algorithms.scratch import Scratch
from stretto.algorithms.state import SupportsLoss, SupportsMixing
from stretto.algorithms.targets import IGNORE_INDEX, get_logits, interpolate_targets
from stretto.algorithms.torch_shim import as_floats, as_ints, lerp_into, standard_gamma
from stretto.core_events import Algorithm, Event

if TYPE_CHECKING:
    from stretto.core_events import Logger

__all__ = ["MixUp", "draw_mixing", "mixup_batch"]

# Above this size of a sample, going sample by sample and reading each once is the fastest.
_LARGE_ROW_BYTES = 1 << 16


# --- maths ---------------------------------------------------------------------------------------


def draw_mixing(
    count: int, alpha: float = 0.2, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Draw ``min(l, 1 - l)`` with ``l ~ Beta(alpha, alpha)``.

    Args:
        count: How many.
        alpha: The Beta distribution's parameter; 0 mixes nothing, 1 is uniform. Default: 0.2.
        generator: A CPU generator. Default: torch's global one.

    Returns:
        Numbers from 0 to 0.5 of type float64, on the CPU.

    Raises:
        ValueError: `alpha` is negative or no number.
    """
    _check_alpha(alpha)
    if alpha == 0:
        return torch.zeros(count, dtype=torch.float64)
    generator = generator or torch.default_generator
    # A gamma variable of a small parameter underflows; its logarithm, made from one of parameter
    # alpha + 1 and a uniform one, does not.
    shape = torch.full((2, count), 1 + alpha, dtype=torch.float64)
    uniform = torch.rand(2, count, generator=generator, dtype=torch.float64)
    logarithms = standard_gamma(shape, generator).log() + uniform.clamp_min_(1e-300).log() / alpha
    return torch.sigmoid(-(logarithms[0] - logarithms[1]).abs())


def mix_samples(
    input: torch.Tensor,
    indices: torch.Tensor,
    mixing: float | torch.Tensor,
    scratch: Scratch | None = None,
) -> torch.Tensor:
    """Return ``(1 - mixing) * input + mixing * input[indices]`` in new memory.

    Args:
        input: Samples, (N, …), of a floating type, or uint8, which becomes float32.
        indices: Each sample's partner, (N,), on the input's device.
        mixing: The partner's share, one number or (N,).
        scratch: Where to take memory from, for a large batch on the CPU.

    Raises:
        BatchFormatError: The input cannot be mixed, such as token ids.
    """
    if input.dtype is torch.uint8:
        input = input.float()
    if not (input.is_floating_point() or input.is_complex()):
        raise BatchFormatError(
            f"The input has the type {input.dtype}, and a mean of two {input.dtype} values (token "
            "ids?) means nothing. Mix embeddings or images instead; input_key says where they are."
        )
    if isinstance(mixing, torch.Tensor):
        mixing = mixing.to(device=input.device, dtype=input.dtype, non_blocking=True)
    rows = None if input.requires_grad else _dense_rows(input)
    if rows is None:
        return torch.lerp(input, input.index_select(0, indices), _broadcast(mixing, input.dim()))
    if scratch is None or input.device.type != "cpu":
        mixed = rows.index_select(0, indices)
        lerp_into(rows, mixed, _broadcast(mixing, 2), out=mixed)
    else:
        mixed = scratch.take(input.numel(), input.dtype).view(rows.shape)
        _mix_rows(rows, indices, mixing, mixed)
    return mixed.as_strided(input.shape, input.stride())


def mixup_batch(
    input: torch.Tensor,
    target: torch.Tensor,
    mixing: float | torch.Tensor | None = None,
    alpha: float = 0.2,
    indices: torch.Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor, float | torch.Tensor]:
    """Mix every sample with another one of the batch.

    ::

        x_mixed, y_perm, mixing = mixup_batch(x, y, alpha=0.2)
        outputs = model(x_mixed)
        loss = (1 - mixing) * loss_fn(outputs, y) + mixing * loss_fn(outputs, y_perm)

    Args:
        input: Samples, (N, …). Not changed.
        target: Targets, (N, …). Not changed.
        mixing: The other sample's share: one number for the batch, or (N,). Default: one number,
            drawn.
        alpha: As in `draw_mixing`. Default: 0.2.
        indices: Each sample's partner, (N,). Default: a random permutation.
        generator: A CPU generator for what is drawn. Default: torch's global one.

    Returns:
        The mixed samples, the partners' targets, and the share that was used.

    Raises:
        ValueError: `alpha` is negative.
        BatchFormatError: Input and target differ in length, or the input cannot be mixed.
    """
    count = _batch_size(input, target)
    if mixing is None:
        mixing = float(draw_mixing(1, alpha, generator))
    if indices is None:
        indices = torch.randperm(count, generator=generator)
    mixed = mix_samples(input, indices.to(input.device), mixing)
    return mixed, target.index_select(0, indices.to(target.device)), mixing


def _mix_rows(
    rows: torch.Tensor, indices: torch.Tensor, mixing: float | torch.Tensor, out: torch.Tensor
) -> None:
    if rows[0].nbytes < _LARGE_ROW_BYTES:
        torch.index_select(rows, 0, indices, out=out)
        lerp_into(rows, out, _broadcast(mixing, 2), out=out)
        return
    count = rows.size(0)
    shares = as_floats(mixing) if isinstance(mixing, torch.Tensor) else [mixing] * count
    for row, partner, share in zip(range(count), as_ints(indices), shares, strict=True):
        lerp_into(rows[row], rows[partner], share, out=out[row])


def _check_alpha(alpha: float) -> None:
    if not (alpha >= 0 and math.isfinite(alpha)):
        raise ValueError(f"alpha={alpha!r}. Give a number of 0 (no mixing) or more.")


def _batch_size(input: object, target: object) -> int:
    if not isinstance(input, torch.Tensor) or not isinstance(target, torch.Tensor):
        kinds = f"{type(input).__name__} and {type(target).__name__}"
        raise BatchFormatError(
            f"Input and target are {kinds}. MixUp needs tensors; say with input_key and target_key "
            "where they are in a batch."
        )
    if input.dim() == 0 or target.dim() == 0 or input.size(0) != target.size(0):
        raise BatchFormatError(
            f"Input {tuple(input.shape)} and target {tuple(target.shape)} are not batches of the "
            "same number of samples along the first axis."
        )
    return input.size(0)


def _broadcast(mixing: float | torch.Tensor, dims: int) -> Any:
    if isinstance(mixing, torch.Tensor) and mixing.dim():
        return mixing.reshape(-1, *(1,) * (dims - 1))
    return mixing


def _dense_rows(input: torch.Tensor) -> torch.Tensor | None:
    """Return the samples as rows of a matrix in the order of memory, if they lie so."""
    strides = input.stride()
    order = sorted(range(input.dim()), key=lambda axis: (-strides[axis], axis))
    if input.numel() == 0 or order[0] != 0 or not input.permute(order).is_contiguous():
        return None
    width = input.numel() // input.size(0)
    return input.as_strided((input.size(0), width), (width, 1))


# --- method --------------------------------------------------------------------------------------


class MixUp(Algorithm[SupportsMixing]):
    """MixUp in a run.

    The device batch is mixed once, at `Event.AFTER_DATALOADER` and after other methods that work
    on the batch there, so its strength does not depend on the microbatch size. From then until
    `Event.BEFORE_FORWARD` the batch's target is a tensor of sample numbers, and each microbatch
    finds its own targets by them. By default the target is mixed for the loss, which must accept
    probabilities, and is the original again at `Event.AFTER_LOSS`, for metrics.

    What is drawn depends on the rank's seed and the number of batches trained, and on nothing
    else: runs resume exactly, and other methods draw what they would draw without this one.

    Args:
        alpha: The Beta distribution's parameter: 0.2 for ImageNet, 1.0 for CIFAR; 0 switches the
            method off. Default: 0.2.
        interpolate_loss: Whether to mix losses instead of targets, for losses that accept class
            indices only. The model must have ``loss(outputs, batch)``, which is called a second
            time, at `Event.BEFORE_BACKWARD`. Default: no.
        input_key: Where the input is in a batch. Default: 0.
        target_key: Where the target is in a batch. Default: 1.
        per_sample: Whether every sample gets a share of its own. Default: yes, but for
            `interpolate_loss`, where there is one loss a microbatch and so one share a batch.
        ignore_index: Class index that takes no part in the loss. Default: -100.
        class_dim: The class axis of the logits. Default: found by the shapes.

    Raises:
        ValueError: `alpha` is negative, or losses are to be mixed with a share for each sample.
        TypeError: A key is none.
    """

    tags = ("mixes_samples",)
    # At AFTER_DATALOADER the order is reversed, so there it comes after the batch transforms.
    run_before = ("LabelSmoothing", "batch_transform")

    def __init__(
        self,
        alpha: float = 0.2,
        interpolate_loss: bool = False,
        input_key: BatchKey = 0,
        target_key: BatchKey = 1,
        *,
        per_sample: bool | None = None,
        ignore_index: int = IGNORE_INDEX,
        class_dim: int | None = None,
    ) -> None:
        _check_alpha(alpha)
        if interpolate_loss and per_sample:
            raise ValueError(
                "MixUp(interpolate_loss=True, per_sample=True): a loss is one number for a "
                "microbatch and cannot be mixed sample by sample. Drop one of the two."
            )
        self.alpha = alpha
        self.interpolate_loss = interpolate_loss
        self.input_key = check_key(input_key, "input_key")
        self.target_key = check_key(target_key, "target_key")
        self.per_sample = not interpolate_loss if per_sample is None else per_sample
        self.ignore_index = ignore_index
        self.class_dim = class_dim
        self.events = _events(interpolate_loss) if alpha > 0 else ()
        self._forget()

    def _forget(self) -> None:
        self._scratch = Scratch()
        self._pairing: Pairing | None = None
        self._microbatch: PairedTargets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._forget()

    def apply(self, event: Event, state: SupportsMixing, logger: Logger) -> None:
        """Do the part of the method that belongs to `event`."""
        del logger
        if event is Event.AFTER_DATALOADER:
            self._mix_batch(state)
        elif event is Event.BEFORE_FORWARD:
            self._hand_out_targets(state)
        elif event is Event.BEFORE_LOSS:
            self._mix_target(state)
        elif event is Event.AFTER_LOSS:
            state.batch_set_item(self.target_key, self._current().first)
        elif event is Event.BEFORE_BACKWARD:
            self._mix_loss(state)
        elif event is Event.AFTER_TRAIN_BATCH:
            self._restore_batch(state)
        elif event is Event.INIT:
            self._check_model(state)

    def _check_model(self, state: SupportsMixing) -> None:
        if not isinstance(state.model, SupportsLoss):
            raise TypeError(
                f"MixUp(interpolate_loss=True) calls model.loss(outputs, batch), and "
                f"{type(state.model).__name__} has no such method. Add it, or leave "
                "interpolate_loss at False."
            )

    def _mix_batch(self, state: SupportsMixing) -> None:
        input = state.batch_get_item(self.input_key)
        target = state.batch_get_item(self.target_key)
        count = _batch_size(input, target)
        generator = keyed_generator(
            seed=state.seed, batch=state.timestamp.batch_count, method="MixUp"
        )
        indices = torch.randperm(count, generator=generator)
        mixing = draw_mixing(count if self.per_sample else 1, self.alpha, generator).float()
        share = mixing if self.per_sample else float(mixing)
        where = target.device
        mixed = mix_samples(
            input, indices.to(input.device, non_blocking=True), share, self._scratch
        )
        tickets = torch.arange(count, device=where).view(count, *(1,) * target.dim())
        self._pairing = Pairing(
            target=target,
            partners=indices.to(where, non_blocking=True),
            mixing=share.to(where, non_blocking=True) if isinstance(share, torch.Tensor) else share,
            tickets=tickets,
        )
        self._microbatch = None
        state.batch_set_item(self.input_key, mixed)
        state.batch_set_item(self.target_key, tickets)

    def _hand_out_targets(self, state: SupportsMixing) -> None:
        target = state.batch_get_item(self.target_key)
        if self._microbatch is not None and target is self._microbatch.first:
            return  # the same microbatch once more
        if self._pairing is None or not self._pairing.holds(target):
            raise BatchFormatError(
                "MixUp finds a target at BEFORE_FORWARD that it did not put there at "
                f"AFTER_DATALOADER: {_describe(target)}. The loop must run both events for each "
                "batch, and between them nothing may replace the target."
            )
        self._microbatch = self._pairing.select(target)
        state.batch_set_item(self.target_key, self._microbatch.first)

    def _current(self) -> PairedTargets:
        if self._microbatch is None:
            raise BatchFormatError("MixUp needs Event.BEFORE_FORWARD to run before the loss.")
        return self._microbatch

    def _mix_target(self, state: SupportsMixing) -> None:
        part = self._current()
        mixed = interpolate_targets(
            None if part.first.is_floating_point() else get_logits(state.outputs),
            part.first,
            part.second,
            part.mixing,
            class_dim=self.class_dim,
            ignore_index=self.ignore_index,
        )
        state.batch_set_item(self.target_key, mixed)

    def _mix_loss(self, state: SupportsMixing) -> None:
        part = self._current()
        second = loss_of_partners(state, self.target_key, part)
        state.loss = combine_losses(state.loss, second, float(part.mixing))

    def _restore_batch(self, state: SupportsMixing) -> None:
        """Give the device batch its target back, for whoever looks at it after the step."""
        pairing, self._pairing, self._microbatch = self._pairing, None, None
        if pairing is None or state.batch is None:
            return
        if pairing.holds(state.batch_get_item(self.target_key)):
            state.batch_set_item(self.target_key, pairing.target)


def _events(interpolate_loss: bool) -> Collection[Event]:
    always = (Event.AFTER_DATALOADER, Event.BEFORE_FORWARD, Event.AFTER_TRAIN_BATCH)
    if interpolate_loss:
        return (Event.INIT, *always, Event.BEFORE_BACKWARD)
    return (*always, Event.BEFORE_LOSS, Event.AFTER_LOSS)


def _describe(target: object) -> str:
    if isinstance(target, torch.Tensor):
        return f"{target.dtype} of shape {tuple(target.shape)}"
    return type(target).__name__
