"""Models on which surgery would do harm."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from stretto.algorithms.errors import SurgeryError
from stretto.algorithms.torch_shim import named_modules

__all__ = ["check_not_wrapped"]

_SHARDED = frozenset({"FSDPModule", "FullyShardedDataParallel"})


def check_not_wrapped(model: nn.Module) -> None:
    """Refuse a model that a parallel strategy holds already.

    DDP's buckets and FSDP's shards refer to the modules and parameters of the time of wrapping;
    what comes into the model afterwards is neither sharded nor reduced.

    Raises:
        SurgeryError: Some part of the model is wrapped or sharded.
    """
    for path, module in named_modules(model):
        kind = type(module)
        names = {cls.__name__ for cls in kind.__mro__}
        if isinstance(module, (DataParallel, DistributedDataParallel)) or names & _SHARDED:
            raise SurgeryError(
                f"{path or 'The model'} is wrapped in {kind.__name__}. Apply surgery to "
                "the bare model, before DDP or fully_shard (a trainer does so at Event.INIT)."
            )
