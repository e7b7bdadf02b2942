"""Reading a checkpoint back into a run."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from stretto.trainer.checkpoint.naming import check_template, format_template
from stretto.trainer.checkpoint.read import read_checkpoint
from stretto.trainer.distributed.topology import Topology
from stretto.trainer.parallel.fqn import listed
from stretto.trainer.serialization import check_algorithms

_log = logging.getLogger(__name__)


class LoadableState(Protocol):
    """What loading needs of a state."""

    @property
    def run_name(self) -> str:
        """Name of the run."""
        ...

    @property
    def topology(self) -> Topology:
        """Its ranks."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Take everything back; called on every rank."""
        ...

    def load_model_state_dict(
        self, state_dict: Mapping[str, Any], *, strict: bool = True
    ) -> tuple[list[str], list[str]]:
        """Take parameters and buffers back; called on every rank."""
        ...


def load_checkpoint(
    state: LoadableState,
    path: str | os.PathLike[str],
    *,
    weights_only: bool = False,
    strict_model_weights: bool = True,
) -> dict[str, Any] | None:
    """Load a checkpoint; every rank must call it.

    No code in the file is run. The random numbers are not set here, so that what happens between
    now and the first batch does not disturb them.

    Args:
        state: Where to load it.
        path: A file or a URL, or a pointer to one; variables that stay the same throughout a run
            may be in it.
        weights_only: Load parameters and buffers, nothing else.
        strict_model_weights: Missing and unexpected weights are an error, rather than a warning.

    Returns:
        This rank's random state, for :func:`~stretto.trainer.checkpoint.rng.restore_rng_state`.
        None with ``weights_only``, and where the run had another number of ranks.

    Raises:
        CheckpointNotFoundError: There is no such file.
        TornCheckpointError: It is cut off, or no checkpoint.
        UnsafeCheckpointError: It holds more than tensors and plain data.
        CheckpointMismatchError: It belongs to another model or optimizer.
        ValueError: An algorithm that changed the saved model is missing from this run.
    """
    template = check_template("load_path", os.fspath(path), moving=False)
    source = format_template(template, run_name=state.run_name, topology=state.topology)
    with ExitStack() as hold:
        content = read_checkpoint(source, state.topology, hold)
        if not weights_only:
            state.load_state_dict(content["state"], strict=strict_model_weights)
        else:
            check_algorithms(state, content["state"])
            names = state.load_model_state_dict(
                content["state"]["model"], strict=strict_model_weights
            )
            _tell(source, *names)
    return None if weights_only else _own_rng(content["rng"], state.topology)


def _own_rng(every: list[dict[str, Any]], topology: Topology) -> dict[str, Any] | None:
    if len(every) == topology.world_size:
        return every[topology.global_rank]
    if topology.is_rank_zero:
        _log.warning(
            "The checkpoint holds the random state of %d ranks and this run has %d: random numbers "
            "start from the seed instead, so dropout and augmentation differ from an "
            "uninterrupted run",
            len(every),
            topology.world_size,
        )
    return None


def _tell(source: str, missing: list[str], unexpected: list[str]) -> None:
    if missing:
        _log.warning("%s lacks weights of the model: %s", source, listed(missing))
    if unexpected:
        _log.warning("%s has weights the model lacks: %s", source, listed(unexpected))
