"""Models, their losses and metrics."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from stretto.trainer import ComposerClassifier, ComposerModel
from stretto.trainer.metrics import CrossEntropy
from stretto.trainer.models import soft_cross_entropy


def logits_and_labels(shape=(6, 4)):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=generator)
    return logits, labels


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 2, 5)])
def test_indices_give_torch_s_own_cross_entropy(shape, weighted, reduction):
    logits, labels = logits_and_labels(shape)
    labels.flatten()[1] = -100
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64) if weighted else None
    expected = functional.cross_entropy(logits, labels, weight=weight, reduction=reduction)
    assert torch.equal(soft_cross_entropy(logits, labels, weight, reduction=reduction), expected)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 2, 5)])
def test_one_hot_probabilities_give_the_loss_of_their_indices(shape, reduction):
    logits, labels = logits_and_labels(shape)
    dense = functional.one_hot(labels, shape[1]).movedim(-1, 1).double()
    expected = functional.cross_entropy(logits, labels, reduction=reduction)
    torch.testing.assert_close(soft_cross_entropy(logits, dense, reduction=reduction), expected)


def test_probabilities_equal_the_definition():
    logits, _ = logits_and_labels()
    dense = torch.rand(6, 4, dtype=torch.float64).softmax(dim=1)
    expected = 0.0
    for row, probabilities in zip(logits.tolist(), dense.tolist(), strict=True):
        norm = math.log(sum(math.exp(x) for x in row))
        expected -= sum(p * (x - norm) for p, x in zip(probabilities, row, strict=True))
    assert float(soft_cross_entropy(logits, dense).detach()) == pytest.approx(expected / 6)


def test_positions_that_are_zero_everywhere_do_not_count_like_ignored_indices():
    logits, labels = logits_and_labels()
    dense = functional.one_hot(labels, 4).double()
    dense[2] = 0
    labels[2] = -100
    ours = soft_cross_entropy(logits, dense)
    (gradient,) = torch.autograd.grad(ours, logits)
    theirs = functional.cross_entropy(logits, labels)
    (expected,) = torch.autograd.grad(theirs, logits)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient, expected)
    nothing = soft_cross_entropy(logits, torch.zeros_like(dense))
    (gradient,) = torch.autograd.grad(nothing, logits)
    assert float(nothing.detach()) == 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_shapes_and_reductions_that_do_not_fit_are_errors():
    logits, _ = logits_and_labels()
    with pytest.raises(ValueError, match="fits logits of shape"):
        soft_cross_entropy(logits, torch.zeros(6, 3))
    with pytest.raises(ValueError, match="reduction must be"):
        soft_cross_entropy(logits, torch.zeros(6, 4), reduction="median")


def test_the_cross_entropy_metric_is_the_mean_over_everything_seen():
    logits, labels = logits_and_labels((10, 4))
    labels[3] = -100
    metric = CrossEntropy()
    metric.update(logits[:7], labels[:7])
    metric.update(logits[7:], labels[7:])
    expected = functional.cross_entropy(logits.float(), labels)
    torch.testing.assert_close(metric.compute(), expected.detach(), check_dtype=False)
    dense = CrossEntropy()
    one_hot = functional.one_hot(labels.clamp(min=0), 4).double()
    one_hot[3] = 0
    dense.update(logits, one_hot)
    torch.testing.assert_close(dense.compute(), expected.detach(), check_dtype=False)


def test_a_classifier_has_accuracy_if_it_knows_its_classes():
    class Declares(nn.Linear):
        num_classes = 3

    linear = nn.Linear(4, 3)
    assert set(ComposerClassifier(linear).get_metrics(is_train=True)) == set()
    assert set(ComposerClassifier(linear).get_metrics(is_train=False)) == {"CrossEntropy"}
    for model in (ComposerClassifier(linear, num_classes=3), ComposerClassifier(Declares(4, 3))):
        assert set(model.get_metrics(is_train=True)) == {"MulticlassAccuracy"}
        assert set(model.get_metrics(is_train=False)) == {"CrossEntropy", "MulticlassAccuracy"}
    with pytest.raises(ValueError, match="num_classes must be at least 1"):
        ComposerClassifier(linear, num_classes=0)


@pytest.mark.parametrize("form", ["one", "list", "mapping", "collection"])
def test_metrics_may_be_given_in_every_usual_form(form):
    accuracy, f1 = MulticlassAccuracy(3), MulticlassF1Score(3)
    given, names = {
        "one": (accuracy, {"MulticlassAccuracy"}),
        "list": ([accuracy, f1], {"MulticlassAccuracy", "MulticlassF1Score"}),
        "mapping": ({"acc": accuracy, "f1": f1}, {"acc", "f1"}),
        "collection": (
            MetricCollection([accuracy, f1]),
            {"MulticlassAccuracy", "MulticlassF1Score"},
        ),
    }[form]
    model = ComposerClassifier(nn.Linear(4, 3), train_metrics=given, val_metrics=given)
    for is_train in (True, False):
        metrics = model.get_metrics(is_train)
        assert set(metrics) == names
        assert all(metric is not accuracy for metric in metrics.values())
    with pytest.raises(ValueError, match="two metrics are called MulticlassAccuracy"):
        ComposerClassifier(
            nn.Linear(4, 3), val_metrics=[accuracy, copy.deepcopy(accuracy)]
        ).get_metrics(is_train=False)


def test_labels_that_are_probabilities_count_as_their_likeliest_class():
    model = ComposerClassifier(nn.Linear(4, 3), num_classes=3)
    metric = model.get_metrics(is_train=False)["MulticlassAccuracy"]
    logits = torch.tensor([[3.0, 0, 0], [0, 3.0, 0], [0, 0, 3.0]])
    labels = torch.tensor([[0.9, 0.1, 0], [0.6, 0.4, 0], [0.1, 0.1, 0.8]])
    model.update_metric((None, labels), logits, metric)
    assert float(metric.compute()) == pytest.approx(2 / 3)


def test_metrics_without_a_way_to_update_them_are_an_error_that_says_so():
    class Model(ComposerModel):
        def forward(self, batch):
            return batch

        def loss(self, outputs, batch, *args, **kwargs):
            return outputs

    with pytest.raises(ValueError, match="must also define update_metric"):
        Model().update_metric(None, None, MulticlassAccuracy(3))
    assert Model().get_metrics(is_train=False) == {}
    assert Model().eval_forward(3, outputs=4) == 4


def test_an_abstract_model_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        ComposerModel()


LAZY = """
import sys
import stretto.trainer
assert "torch" not in sys.modules
stretto.trainer.Event, stretto.trainer.Time
assert "torch" not in sys.modules
from stretto.trainer import Trainer, ComposerClassifier, State, DataSpec, Evaluator, dist
from torch import nn
ComposerClassifier(nn.Linear(2, 2)).get_metrics(is_train=True)
assert "torchmetrics" not in sys.modules
assert "torch.distributed.fsdp" not in sys.modules
assert set(stretto.trainer.__all__) <= set(dir(stretto.trainer))
try:
    stretto.trainer.Trainr
except AttributeError as error:
    assert "Trainr" in str(error)
else:
    raise AssertionError
"""


def test_importing_costs_only_what_is_used():
    subprocess.run([sys.executable, "-c", LAZY], check=True, timeout=120)
