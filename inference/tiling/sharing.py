"""The rows of tiles of one large input on several processes, with the result of one process.

The first process of a group leads: it reads the input, puts its tiles together and writes the file. The others follow:
they go through the same rows, but compute only their own, and send the logits to the leader. So each number is computed
and added up as by one process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from inference.tiling.stream import Forward
from runtime.errors import DataError, one_line
from runtime.mesh import Mesh

NO_INPUT = -1  # sent instead of an input's number: there are no more inputs
REQUEST_LOGITS = 1  # asks for the logits of a batch of tiles
END_OF_INPUT = 0  # says that the leader has finished the input


class InputOver(Exception):
    """The leader has finished an input; before the last row if writing failed."""


class SharedRows:
    """Deals the rows of tiles to the processes of a group: row i to process i mod size.

    Args:
        outputs: channels of the logits.
        device: the device of the logits, and of the messages between processes.
    """

    def __init__(self, mesh: Mesh, outputs: int, device: torch.device) -> None:
        self.mesh = mesh
        self.outputs = outputs
        self.device = device
        if mesh.size > 1:
            _ = mesh.process_group  # all processes create it together

    @property
    def followers(self) -> range:
        """The places of the processes that follow."""
        return range(1, self.mesh.size)

    def row_forward_for(self, forward: Forward, row: int) -> Forward:
        """The function that computes, sends or receives the logits of a row's tiles in this process."""
        owner = row % self.mesh.size
        is_own = owner == self.mesh.slab
        if self.mesh.is_first:
            return forward if is_own else partial(self._receive, owner)
        return partial(self._send, forward) if is_own else self._placeholder_logits

    @contextmanager
    def lead(self, number: int) -> Iterator[None]:
        """A context in which the leader predicts an input, with the help of the others."""
        for follower in self.followers:
            self._tell(follower, number)
        try:
            yield
        finally:
            for follower in self.followers:
                self._tell(follower, END_OF_INPUT)

    def end(self) -> None:
        """Tell the other processes that there are no more inputs."""
        for follower in self.followers:
            self._tell(follower, NO_INPUT)

    def inputs(self) -> Iterator[int]:
        """The numbers of the inputs that the leader begins, for a process that follows."""
        while (number := self._next_message()) != NO_INPUT:
            yield number

    @contextmanager
    def follow(self, errors: tuple[type[Exception], ...]) -> Iterator[None]:
        """A context in which this process goes through an input's rows; the leader reports its `errors`."""
        problem = ""
        try:
            yield
        except InputOver:
            return
        except errors as error:
            problem = one_line(error)
        while self._next_message() == REQUEST_LOGITS:
            self._answer(problem)

    def _send(self, forward: Forward, batch: Tensor) -> Tensor:
        """Compute and send the logits of a batch of tiles. Raises InputOver if the leader has finished the input."""
        logits = forward(batch)
        if self._next_message() == END_OF_INPUT:
            raise InputOver
        self._answer("")
        dist.send(logits.contiguous(), self.mesh.slab_rank(0), group=self.mesh.process_group)
        return logits

    def _receive(self, owner: int, batch: Tensor) -> Tensor:
        """The logits of a batch of tiles, from the process of their row. Raises DataError if it cannot compute them."""
        self._tell(owner, REQUEST_LOGITS)
        length = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._receive_into(length, owner)
        if length.item():
            text = torch.zeros(int(length.item()), dtype=torch.uint8, device=self.device)
            self._receive_into(text, owner)
            raise DataError(bytes(text.tolist()).decode())
        dtype = batch.dtype if batch.dtype == torch.float64 else torch.float32
        logits = torch.empty((len(batch), self.outputs, *batch.shape[2:]), dtype=dtype, device=self.device)
        self._receive_into(logits, owner)
        return logits

    def _placeholder_logits(self, batch: Tensor) -> Tensor:
        """Placeholder logits of a row that another process computes; this process does not need them."""
        return torch.zeros(len(batch), self.outputs, *batch.shape[2:], device=self.device)

    def _answer(self, problem: str) -> None:
        """Tell the leader that logits come, or, if not empty, the `problem` that prevents them."""
        text = problem.encode()
        leader = self.mesh.slab_rank(0)
        dist.send(torch.tensor([len(text)], device=self.device), leader, group=self.mesh.process_group)
        if text:
            dist.send(torch.tensor(list(text), dtype=torch.uint8, device=self.device), leader, self.mesh.process_group)

    def _tell(self, follower: int, number: int) -> None:
        message = torch.tensor([number], device=self.device)
        dist.send(message, self.mesh.slab_rank(follower), group=self.mesh.process_group)

    def _next_message(self) -> int:
        """The next message of the leader."""
        message = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._receive_into(message, 0)
        return int(message.item())

    def _receive_into(self, values: Tensor, slab: int) -> None:
        dist.recv(values, self.mesh.slab_rank(slab), group=self.mesh.process_group)
