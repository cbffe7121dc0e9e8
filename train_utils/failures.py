"""What a process says that fails because of another one: a line, since the other one has the story."""

import os
import re

import torch.distributed as dist

GONE = ("connection closed", "connection reset", "broken pipe", "process exited", "connection was likely closed")
LATE = ("timed out", "timeout")


def echo_of_another(error: Exception) -> str | None:
    """A line for an error that only says that another process has gone, hangs or never came; None for any other."""
    text = " ".join(str(error).split())
    if not isinstance(error, dist.DistError) and "gloo" not in text:
        return None
    rank, world_size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    reason = re.sub(r"\[[^\]]*\.cc:\d+\] ", "", text).partition(". ")[0][:200]
    if not dist.is_initialized():
        return (
            f"process {rank} did not find all {world_size} processes ({reason}); is every machine started, with its own"
            " --machine_rank and the same --num_machines, --main_process_ip and --main_process_port?"
        )
    if any(word in text.lower() for word in GONE):
        return f"process {rank} lost another process, which ended ({reason}); --resume auto goes on from the checkpoint"
    if any(word in text.lower() for word in LATE):
        return f"process {rank} waited in vain for another one, which hangs or is gone ({reason})"
    return None
