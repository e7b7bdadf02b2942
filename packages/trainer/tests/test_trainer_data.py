"""Splitting keeps a sample's rows together; items are read and replaced; samplers are checked."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stretto.trainer import ComposerClassifier, DataSpec, Trainer
from stretto.trainer.data import count_rows, default_split_batch, slice_rows
from stretto.trainer.data.items import batch_get, batch_set

Pair = namedtuple("Pair", ["inputs", "labels"])


def rows_of(value, place):
    """Return what belongs to one row, by a rule of this test's own."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value[place].tolist() if value.ndim else value.tolist()
    if isinstance(value, dict | UserDict):
        return {k: rows_of(v, place) for k, v in value.items()}
    if isinstance(value, tuple):
        return [rows_of(v, place) for v in value]
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[place]
    if isinstance(value, list):
        return [rows_of(v, place) for v in value]
    return value


def make_batch(kind: str, rows: int):
    x = torch.arange(rows * 2).reshape(rows, 2)
    y = torch.arange(rows)
    names = [f"sample {i}" for i in range(rows)]
    return {
        "tensor": x,
        "tuple": (x, y),
        "list": [x, y],
        "named tuple": Pair(x, y),
        "dict": {"x": x, "y": y, "scale": 0.5, "what": "text", "none": None},
        "ordered": OrderedDict(x=x, y=y),
        "user dict": UserDict(x=x, y=y),
        "nested": ((x, {"y": y}), y),
        "list of labels": (x, names),
        "array": (x.numpy(), y.numpy()),
        "scalar tensor": {"x": x, "temperature": torch.tensor(2.0)},
    }[kind]


KINDS = [
    "tensor", "tuple", "list", "named tuple", "dict", "ordered", "user dict", "nested",
    "list of labels", "array", "scalar tensor",
]  # fmt: skip


@given(kind=st.sampled_from(KINDS), rows=st.integers(1, 13), size=st.integers(1, 14))
@settings(max_examples=300, deadline=None)
def test_the_parts_in_order_hold_the_rows_of_the_batch(kind, rows, size):
    """M1: lists were split with a stride and tensors in blocks, so rows no longer matched."""
    batch = make_batch(kind, rows)
    assert count_rows(batch) == rows
    parts = default_split_batch(batch, size)
    sizes = [count_rows(part) for part in parts]
    assert sum(sizes) == rows
    assert all(s == size for s in sizes[:-1])
    assert 1 <= sizes[-1] <= size
    assert all(type(part) is type(batch) for part in parts)
    found = [rows_of(p, i) for p, n in zip(parts, sizes, strict=True) for i in range(n)]
    assert found == [rows_of(batch, i) for i in range(rows)]


def test_six_tensors_and_six_labels_in_twos():
    """M1's own case: (tensor of 6, list of 6), microbatch 2."""
    parts = default_split_batch((torch.arange(6), list("abcdef")), 2)
    assert [(t.tolist(), labels) for t, labels in parts] == [
        ([0, 1], ["a", "b"]), ([2, 3], ["c", "d"]), ([4, 5], ["e", "f"]),
    ]  # fmt: skip


def test_targets_of_different_length_a_sample_are_split_by_sample():
    boxes = [torch.zeros(n, 4) for n in (3, 0, 7, 2)]
    parts = default_split_batch((torch.zeros(4, 3, 8, 8), boxes), 3)
    assert [len(b) for _, b in parts] == [3, 1]
    assert parts[1][1][0] is boxes[3]


def test_a_list_of_samples_is_split_by_sample():
    samples = [{"text": "a"}, {"text": "b"}, {"text": "c"}]
    assert count_rows(samples) == 3
    assert default_split_batch(samples, 2) == [samples[:2], samples[2:]]


def test_parts_share_memory_with_the_batch():
    x = torch.zeros(4, 2)
    parts = default_split_batch((x, torch.zeros(4)), 2)
    assert parts[1][0].data_ptr() == x[2:].data_ptr()


@pytest.mark.parametrize(
    "batch", [(torch.zeros(4), torch.zeros(3)), {"x": torch.zeros(4), "y": ["a", "b"]}]
)
def test_columns_of_unequal_length_are_an_error_with_the_remedy(batch):
    with pytest.raises(ValueError, match=r"columns of 4 and of [23] rows.*DataSpec\("):
        count_rows(batch)


@pytest.mark.parametrize("batch", [None, 3, object(), "text", torch.tensor(1.0), {}, {"a": 1}])
def test_a_batch_without_rows_is_an_error_with_the_remedy(batch):
    with pytest.raises(ValueError, match="get_num_samples_in_batch"):
        count_rows(batch)


def test_outputs_with_other_shapes_are_kept_whole():
    outputs = {"logits": torch.zeros(4, 3), "cache": torch.zeros(2, 9), "loss": torch.tensor(1.0)}
    kept = slice_rows(outputs, 4, 0, 1, strict=False)
    assert kept["logits"].shape == (1, 3)
    assert kept["cache"] is outputs["cache"]
    assert kept["loss"] is outputs["loss"]


class Holder:
    def __init__(self) -> None:
        self.inputs = 1


@pytest.mark.parametrize(
    ("batch", "key", "value"),
    [
        ((1, 2), 1, 2),
        ([1, 2], 0, 1),
        ({"a": 1}, "a", 1),
        (Pair(1, 2), "labels", 2),
        (Pair(1, 2), 0, 1),
        (Holder(), "inputs", 1),
        ({"a": {"b": 3}}, (lambda b: b["a"]["b"], lambda b, v: {"a": {"b": v}}), 3),
        ({"a": 1, "b": 2}, ["a", "b"], (1, 2)),
        ((1, 2, 3), [0, 2], (1, 3)),
    ],
)
def test_items_are_read_and_replaced_without_changing_the_batch(batch, key, value):
    assert batch_get(batch, key) == value
    new = (8, 9) if isinstance(key, list) else 9
    replaced = batch_set(batch, key, new)
    assert type(replaced) is type(batch)
    assert batch_get(replaced, key) == new
    assert batch_get(batch, key) == value


def test_items_that_cannot_be_found_or_set_are_errors():
    assert batch_get((1, 2), lambda batch: batch[1]) == 2
    with pytest.raises(ValueError, match="give a pair"):
        batch_set((1, 2), lambda batch: batch[1], 3)
    with pytest.raises(KeyError):
        batch_get({"a": 1}, "b")
    with pytest.raises(IndexError):
        batch_get((1,), 2)
    with pytest.raises(TypeError, match="use an index"):
        batch_set((1, 2), "x", 3)


def test_a_spec_uses_the_functions_it_is_given():
    spec = DataSpec(
        [{"x": [1, 2, 3]}],
        get_num_samples_in_batch=lambda batch: len(batch["x"]),
        split_batch=lambda batch, size: [{"x": batch["x"][:size]}],
        get_num_tokens_in_batch=lambda batch, token_type="total": 7 if token_type == "total" else 5,
    )
    assert spec.get_num_samples_in_batch({"x": [1, 2]}) == 2
    assert spec.get_num_tokens_in_batch({}) == 7
    assert spec.get_num_tokens_in_batch({}, "loss_generating") == 5
    assert len(spec) == 1


def test_tokens_are_counted_from_input_ids_and_labels():
    ids = torch.zeros(2, 6).long()
    labels = torch.tensor([[1, 2, -100, -100, -100, -100], [1, 2, 3, 4, 5, -100]])
    spec = DataSpec([])
    assert spec.get_num_tokens_in_batch({"input_ids": ids, "labels": labels}) == 12
    batch = {"input_ids": ids, "labels": labels}
    assert spec.get_num_tokens_in_batch(batch, "loss_generating") == 7
    assert spec.get_num_tokens_in_batch((ids, labels)) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataloader": 5}, "iterable of batches, got int"),
        ({"dataloader": [], "num_samples": -1}, "num_samples must not be negative"),
        ({"dataloader": [], "num_tokens": -2}, "num_tokens must not be negative"),
    ],
)
def test_a_wrong_spec_is_an_error_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        DataSpec(**arguments)


def test_transforms_run_on_the_whole_batch_and_on_each_microbatch():
    seen = []

    def whole(batch):
        seen.append(("batch", len(batch[0])))
        return (batch[0] * 2, batch[1])

    def part(batch):
        seen.append(("microbatch", len(batch[0]), float(batch[0][0, 0])))
        return batch

    spec = DataSpec(
        [(torch.ones(4, 4), torch.zeros(4).long())],
        batch_transforms=whole,
        microbatch_transforms=part,
    )
    with Trainer(
        model=ComposerClassifier(nn.Linear(4, 3)),
        train_dataloader=spec,
        max_duration="1ba",
        device_train_microbatch_size=2,
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    assert seen == [("batch", 4), ("microbatch", 2, 2.0), ("microbatch", 2, 2.0)]


def test_a_mapping_of_arguments_is_a_spec():
    loader = DataLoader(TensorDataset(torch.zeros(4, 4), torch.zeros(4).long()), batch_size=2)
    given = {"dataloader": loader, "get_num_samples_in_batch": lambda batch: 10}
    with Trainer(
        model=ComposerClassifier(nn.Linear(4, 3)),
        train_dataloader=given,
        max_duration="1ep",
        progress_bar=False,
    ) as trainer:
        trainer.fit()
        assert trainer.state.timestamp.sample_count == 20


def build_without_sampler(which):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from stretto.trainer import ComposerClassifier, Trainer, dist

    data = TensorDataset(torch.zeros(8, 4), torch.zeros(8).long())
    plain = DataLoader(data, batch_size=2)
    for_three = DataLoader(data, sampler=DistributedSampler(data, num_replicas=3, rank=0))
    # Seed document 003, section 12: the sampler that every map dataset needs.
    sampler = dist.get_sampler(data, shuffle=True)
    good = DataLoader(data, batch_size=2, sampler=sampler)
    arguments = {
        "plain": {"train_dataloader": plain},
        "eval": {"train_dataloader": good, "eval_dataloader": plain},
        "three": {"train_dataloader": for_three},
        "good": {"train_dataloader": good, "eval_dataloader": good},
    }[which]
    model = ComposerClassifier(nn.Linear(4, 3))
    try:
        trainer = Trainer(model=model, max_duration="2ep", progress_bar=False, **arguments)
    except ValueError as error:
        return str(error)
    trainer.fit()
    trainer.close()
    return sampler.epoch, trainer.state.timestamp.sample_count


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("plain", "the train dataloader reads a map dataset on 2 ranks"),
        ("eval", "the eval dataloader reads a map dataset on 2 ranks"),
        ("three", "shares its samples among 3 ranks, but this run has 2"),
    ],
)
def test_a_map_dataset_without_a_distributed_sampler_is_an_error_on_several_ranks(
    run_ranks, which, message
):
    """Seed document 003, section 12."""
    for answer in run_ranks(build_without_sampler, which=which):
        assert message in answer
        assert "stretto.trainer.dist.get_sampler(dataset" in answer


def test_the_sampler_hears_of_each_epoch_and_ranks_share_the_samples(run_ranks):
    assert run_ranks(build_without_sampler, which="good") == [(1, 16), (1, 16)]
