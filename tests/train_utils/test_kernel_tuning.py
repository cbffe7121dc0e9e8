"""When cuDNN times its kernels."""

import numpy as np
import pytest
import torch
from support.in_process import parsed

from data_utils.loading.loaders import NetworkShapes
from train_utils.kernel_tuning import tune_kernels

FEW = NetworkShapes(np.array([(8, 8), (8, 16)] * 5), np.array([(8, 8), (32, 32)]))
MANY = NetworkShapes(np.array([(8, 8 * width) for width in range(1, 6)]), np.array([(8, 8)]))


@pytest.mark.parametrize(
    ("device", "shapes", "flags", "is_tuned"),
    [
        ("cuda", FEW, [], True),
        ("cuda", FEW, ["--max-minutes", "10"], True),
        ("cuda", FEW, ["--max-minutes", "9.9"], False),
        ("cuda", FEW, ["--deterministic"], False),
        ("cuda", MANY, [], False),
        ("cpu", FEW, [], False),
    ],
)
def test_kernels_are_timed_on_a_gpu_for_few_shapes_in_a_long_run(device, shapes, flags, is_tuned):
    with torch.backends.cudnn.flags(benchmark=not is_tuned):
        tune_kernels(parsed("--dataset", "shapes", *flags), torch.device(device), shapes)
        assert torch.backends.cudnn.benchmark == is_tuned
