"""The optimizers: which weights decay, and how they are updated.

Module: train_utils/optim.py.
"""

import pytest
import torch
from accelerate.utils import DistributedType
from torch import nn

from train_utils.optim import build_optimizer


class WithEncoder(nn.Module):
    """A network whose encoder has one frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3))
        self.encoder[1].requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Conv1d(3, 2, 1)


def test_an_unknown_optimizer_is_an_error():
    with pytest.raises(KeyError, match="adam"):
        build_optimizer(WithEncoder(), "adam", 0.5, 0.01)


def test_weights_are_grouped_by_encoder_and_by_what_decays():
    groups = []
    for group in build_optimizer(WithEncoder(), "adamw", 0.5, 0.01).param_groups:
        shapes = [tuple(parameter.shape) for parameter in group["params"]]
        groups.append((group["of_encoder"], group["weight_decay"], shapes))
    assert sorted(groups) == [
        (False, 0.0, [(3,), (3,), (2,)]),
        (False, 0.01, [(2, 3, 1)]),
        (True, 0.0, [(3,)]),
        (True, 0.01, [(3, 2)]),
    ]


def test_sgd_has_nesterov_momentum():
    defaults = build_optimizer(nn.Linear(2, 2), "sgd", 0.1, 0.01).defaults
    assert defaults["momentum"] == 0.9
    assert defaults["nesterov"] is True


@pytest.mark.parametrize(
    ("name", "kind", "is_fused"),
    [
        ("adamw", DistributedType.MULTI_GPU, True),
        ("muon", DistributedType.NO, True),
        ("adamw", DistributedType.FSDP, True),
        ("sgd", DistributedType.FSDP, False),
        ("adamw", DistributedType.DEEPSPEED, False),
    ],
)
def test_an_optimizer_updates_all_weights_in_one_kernel_where_that_can_be(name, kind, is_fused):
    optimizer = build_optimizer(torch.nn.Linear(2, 2), name, 0.25, 0.01, kind)
    assert bool(optimizer.defaults["fused"]) is is_fused
    assert optimizer.defaults["lr"] == 0.25
