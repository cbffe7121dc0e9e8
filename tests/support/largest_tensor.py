"""The memory of the largest tensor of a computation, for tests of computations in parts."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """The bytes of the largest tensor that is computed within."""

    bytes = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        output = operator(*args, **(kwargs or {}))
        if isinstance(output, Tensor):
            self.bytes = max(self.bytes, output.nbytes)
        return output
