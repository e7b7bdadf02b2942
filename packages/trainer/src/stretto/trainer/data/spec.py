"""A dataloader together with what the trainer must know about its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from torch import Tensor

from stretto.trainer._loose import length_of
from stretto.trainer.data.split import count_rows, default_split_batch

TokenType = Literal["total", "loss_generating"]

IGNORED_LABEL = -100


class DataSpec:
    """A dataloader with functions that count, split and transform its batches.

    Args:
        dataloader: Any iterable of batches.
        num_samples: Samples in an epoch over all ranks, where the loader's dataset cannot tell.
        num_tokens: Tokens in an epoch over all ranks.
        batch_transforms: Applied to the whole batch, on the device, before AFTER_DATALOADER.
        microbatch_transforms: Applied to each microbatch, before BEFORE_FORWARD.
        split_batch: `(batch, microbatch_size) -> parts`; needed only to split batches that are
            not tensors, tuples, lists or mappings.
        get_num_samples_in_batch: `(batch) -> int`, samples in this rank's batch.
        get_num_tokens_in_batch: `(batch) -> int` or `(batch, token_type=...) -> int`, where the
            type is "total" or "loss_generating". By default the elements of
            `batch["input_ids"]`, and the `labels` other than -100; 0 for other batches.

    Raises:
        ValueError: If the dataloader is not iterable or a count is negative.
    """

    def __init__(
        self,
        dataloader: Iterable[Any],
        num_samples: int | None = None,
        num_tokens: int | None = None,
        batch_transforms: Callable[[Any], Any] | None = None,
        microbatch_transforms: Callable[[Any], Any] | None = None,
        split_batch: Callable[[Any, int], Sequence[Any]] | None = None,
        get_num_samples_in_batch: Callable[[Any], int] | None = None,
        get_num_tokens_in_batch: Callable[..., int] | None = None,
    ) -> None:
        if not hasattr(dataloader, "__iter__") and not hasattr(dataloader, "__getitem__"):
            raise ValueError(
                f"dataloader must be an iterable of batches, got {type(dataloader).__name__}: "
                "pass a torch DataLoader or a list of batches"
            )
        for name, count in (("num_samples", num_samples), ("num_tokens", num_tokens)):
            if count is not None and count < 0:
                raise ValueError(f"{name} must not be negative, got {count}")
        self.dataloader = dataloader
        self.num_samples = num_samples if num_samples is not None else _dataset_length(dataloader)
        self.num_tokens = num_tokens
        self.batch_transforms = batch_transforms
        self.microbatch_transforms = microbatch_transforms
        self.split_batch = split_batch or default_split_batch
        self.get_num_samples_in_batch = get_num_samples_in_batch or count_rows
        self._count_tokens = get_num_tokens_in_batch
        self._counts_types = get_num_tokens_in_batch is not None and _takes_token_type(
            get_num_tokens_in_batch
        )

    @property
    def counts_tokens(self) -> bool:
        """Whether a function to count tokens was given."""
        return self._count_tokens is not None

    def get_num_tokens_in_batch(self, batch: Any, token_type: TokenType = "total") -> int:
        """Return the tokens in this rank's batch.

        Args:
            batch: The batch.
            token_type: "total", or "loss_generating" for those that the loss is a mean of.
        """
        if self._count_tokens is None:
            return default_count_tokens(batch, token_type)
        if self._counts_types:
            return int(self._count_tokens(batch, token_type=token_type))
        return int(self._count_tokens(batch))

    def __len__(self) -> int:
        """Return the number of batches of this rank; TypeError where the loader cannot tell."""
        return len(cast("Any", self.dataloader))


def ensure_data_spec(
    dataloader: DataSpec | Iterable[Any] | Mapping[str, Any],
) -> DataSpec:
    """Return the spec itself, or one made from a dataloader or from a mapping of arguments.

    Raises:
        ValueError: If it is neither.
    """
    if isinstance(dataloader, DataSpec):
        return dataloader
    if isinstance(dataloader, Mapping):
        return DataSpec(**cast("Mapping[str, Any]", dataloader))
    return DataSpec(dataloader)


def dataloader_length(dataloader: Iterable[Any]) -> int | None:
    """Return the number of batches in an epoch of this rank, None where it cannot be told."""
    return length_of(dataloader)


def default_count_tokens(batch: Any, token_type: TokenType = "total") -> int:
    """Count the tokens of a mapping with `input_ids` (and `labels`); 0 for any other batch."""
    if not isinstance(batch, Mapping):
        return 0
    columns = cast("Mapping[str, Any]", batch)
    tokens = columns.get("input_ids")
    if not isinstance(tokens, Tensor):
        return 0
    labels = columns.get("labels")
    if token_type == "loss_generating" and isinstance(labels, Tensor):
        return int((labels != IGNORED_LABEL).sum())
    return tokens.numel()


def _dataset_length(dataloader: Any) -> int | None:
    return length_of(getattr(dataloader, "dataset", None))


def _takes_token_type(function: Callable[..., int]) -> bool:
    import inspect

    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return "token_type" in parameters or any(
        p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()
    )
