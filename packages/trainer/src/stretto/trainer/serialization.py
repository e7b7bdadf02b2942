"""What a checkpoint holds of a run: collected from the state, and put back.

Values are tensors and plain data, so that loading runs no code. Every function is to be called on
every rank.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from stretto.core_events import Timestamp
from stretto.trainer import dist
from stretto.trainer._loose import metric_states
from stretto.trainer.checkpoint.plain import mapped

if TYPE_CHECKING:
    from stretto.trainer.parallel.strategy import Prepared
    from stretto.trainer.state import State

log = logging.getLogger(__name__)


def collect(state: State) -> dict[str, Any]:
    """Return everything a run needs to go on from here."""
    prepared, strategy = get_prepared(state), state.strategy
    numbers = range(len(prepared.optimizers))
    saved: dict[str, Any] = {
        "model": strategy.model_state_dict(prepared),
        "optimizers": [strategy.optimizer_state_dict(prepared, n) for n in numbers],
        "schedulers": [dict(_named(s, s.state_dict())) for s in state.schedulers],
        "algorithms": [dict(_named(a, a.state_dict())) for a in state.algorithms],
        "callbacks": [dict(_named(c, c.state_dict())) for c in state.callbacks],
        "scaler": state.precision.state_dict(),
        "timestamp": state.timestamp.state_dict(),
        "rank_zero_seed": state.rank_zero_seed,
        "run_name": state.run_name,
        "dataset_state": {
            "data_parallel_size": state.topology.data_parallel_size,
            "ranks": dist.all_gather_object(state.data_state.position.state_dict()),
        },
    }
    if state.execution.save_metrics:
        # Each rank has seen its own samples: metrics are summed over the ranks when computed.
        every = dist.all_gather_object(_all_metric_states(state))
        saved["train_metrics"] = [own["train"] for own in every]
        saved["eval_metrics"] = [own["eval"] for own in every]
    return saved


def restore(state: State, saved: Mapping[str, Any], *, strict: bool = True) -> None:
    """Put back what `collect` returned.

    Args:
        state: The run.
        saved: What was collected.
        strict: Whether missing or unexpected weights are an error.

    Raises:
        ValueError: If weights do not fit, or an algorithm that changed the saved model is missing
            from this run.
    """
    check_algorithms(state, saved)
    prepared, strategy = get_prepared(state), state.strategy
    strategy.load_model_state_dict(prepared, saved["model"], strict=strict)
    optimizers = cast("Sequence[Mapping[str, Any]]", saved.get("optimizers", ()))
    if len(optimizers) != len(prepared.optimizers):
        raise ValueError(
            f"the checkpoint holds {len(optimizers)} optimizers, this run has "
            f"{len(prepared.optimizers)}: use the same, or load_weights_only=True"
        )
    for number, entry in enumerate(optimizers):
        strategy.load_optimizer_state_dict(prepared, number, entry)
    _give_back("schedulers", state.schedulers, saved)
    _give_back("algorithms", state.algorithms, saved)
    _give_back("callbacks", state.callbacks, saved)
    state.precision.load_state_dict(saved.get("scaler", {}))
    state.timestamp = Timestamp.from_state_dict(saved["timestamp"])
    state.rank_zero_seed = int(saved.get("rank_zero_seed", state.rank_zero_seed))
    _restore_position(state, saved.get("dataset_state", {}))
    _restore_metrics(state, saved)


def get_prepared(state: State) -> Prepared:
    """Return the wrapped model.

    Raises:
        RuntimeError: If it is not wrapped yet.
    """
    prepared = state.model_state.prepared
    if prepared is None:
        raise RuntimeError(
            "the model is not wrapped for training yet: a checkpoint can be saved or loaded from "
            "BEFORE_LOAD on"
        )
    return prepared


def collect_weights(state: Any) -> dict[str, Any]:
    """Return parameters and buffers, and the names of algorithms they do not fit without.

    Args:
        state: Of a run; one without algorithms will do.
    """
    required = [
        {"name": type(algorithm).__name__, "required_on_load": True}
        for algorithm in cast("Sequence[Any]", getattr(state, "algorithms", ()))
        if algorithm.required_on_load()
    ]
    model = {"model": state.model_state_dict()}
    return {**model, "algorithms": required} if required else model


def check_algorithms(state: Any, saved: Mapping[str, Any]) -> None:
    """Check that algorithms that changed the saved model take part in this run.

    Args:
        state: Of this run; one without algorithms will do.
        saved: What was collected, or what `collect_weights` returned.

    Raises:
        ValueError: If one does not.
    """
    present = {type(a).__name__ for a in getattr(state, "algorithms", ())}
    missing = [
        str(entry["name"])
        for entry in cast("Sequence[Mapping[str, Any]]", saved.get("algorithms", ()))
        if entry.get("required_on_load") and entry["name"] not in present
    ]
    if missing:
        raise ValueError(
            f"the checkpoint's model was changed by {', '.join(missing)}: pass the same to "
            "Trainer(algorithms=...), or its weights do not fit"
        )


def _named(member: Any, saved: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    yield "name", type(member).__name__
    yield "state", dict(saved)
    required = getattr(member, "required_on_load", None)
    if callable(required):
        yield "required_on_load", bool(required())


def _give_back(what: str, members: Sequence[Any], saved: Mapping[str, Any]) -> None:
    """Give each member the state of the saved one of its name, in order."""
    entries = list(cast("Sequence[Mapping[str, Any]]", saved.get(what, ())))
    for member in members:
        name = type(member).__name__
        match = next((entry for entry in entries if entry["name"] == name), None)
        if match is None:
            log.info("The checkpoint holds nothing of %s among its %s.", name, what)
            continue
        entries.remove(match)
        member.load_state_dict(dict(match["state"]))
    for entry in entries:
        if entry["state"]:
            log.warning("The checkpoint's %s of %s found no taker.", what, entry["name"])


def _restore_position(state: State, saved: Mapping[str, Any]) -> None:
    ranks = cast("Sequence[Mapping[str, Any]]", saved.get("ranks", ()))
    topology, position = state.topology, state.data_state.position
    position.ranks = int(saved.get("data_parallel_size", topology.data_parallel_size))
    if len(ranks) == topology.world_size:
        position.load_state_dict(ranks[topology.global_rank])
    elif ranks:
        log.warning(
            "The checkpoint was saved by %d ranks and is loaded by %d: the order of the current "
            "epoch's data cannot be drawn again exactly, unless a distributed sampler draws it.",
            len(ranks),
            topology.world_size,
        )


def _all_metric_states(state: State) -> dict[str, Any]:
    """Return what the metrics of this rank have seen, on the host."""
    return {
        "train": _metric_states(state.train_metrics),
        "eval": {label: _metric_states(own) for label, own in state.eval_metrics.items()},
    }


def _metric_states(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: mapped(metric_states(metric), Tensor, lambda tensor: tensor.detach().cpu())
        for name, metric in metrics.items()
    }


def _restore_metrics(state: State, saved: Mapping[str, Any]) -> None:
    train, evaluation = saved.get("train_metrics", ()), saved.get("eval_metrics", ())
    size, rank = state.topology.world_size, state.topology.global_rank
    if not train and not evaluation:
        return
    if len(train) != size or len(evaluation) != size:
        log.warning(
            "The checkpoint holds the metrics of %d ranks and this run has %d: they are dropped, "
            "so the metrics of the current epoch count from here.",
            len(train),
            size,
        )
        return
    groups = {"": state.train_metrics, **state.eval_metrics}
    entries = {"": train[rank], **evaluation[rank]}
    for label, metrics in groups.items():
        for name, values in cast("Mapping[str, Any]", entries.get(label, {})).items():
            if name in metrics:
                for own_name, value in cast("Mapping[str, Any]", values).items():
                    setattr(metrics[name], own_name, value)
