"""A stand-in for an Accelerator."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch
from accelerate.utils import DistributedType, DynamoBackend

# the state of a launch that compiles nothing
AS_IT_IS = SimpleNamespace(dynamo_plugin=SimpleNamespace(backend=DynamoBackend.NO))


def new_accelerator(
    processes: int = 1,
    agreed: int | None = None,
    *,
    device: str = "cpu",
    kind: DistributedType = DistributedType.NO,
) -> SimpleNamespace:
    """What a check of memory asks of an Accelerator; another process has room for `agreed` images."""

    def gather(values: torch.Tensor) -> torch.Tensor:
        return values if agreed is None else torch.cat([values, torch.full_like(values, agreed)])

    return SimpleNamespace(
        device=torch.device(device),
        num_processes=processes,
        distributed_type=kind,
        state=AS_IT_IS,
        autocast=nullcontext,
        gather=gather,
    )
