"""How a global batch is cut into micro-batches."""

import math

from train_utils.launch import LaunchError


def split_batch(
    batch_size: int,
    world_size: int,
    micro_batch_size: int | None,
    accumulation: int | None,
    profile_accumulation: int | None,
    saved_size: int | None = None,
) -> tuple[int, int]:
    """(micro-batch size, accumulation steps) that hold `batch_size` images over `world_size` processes.

    What is not given is derived, a micro-batch never larger than the `saved_size` of a resumed run. Explicit settings
    that disagree are a LaunchError, not a silent winner.
    """
    if profile_accumulation and accumulation and profile_accumulation != accumulation:
        raise LaunchError(
            f"the profile sets {profile_accumulation} gradient accumulation steps,"
            f" --gradient-accumulation-steps {accumulation}; give one of them"
        )
    accumulation = accumulation or profile_accumulation
    share = math.ceil(batch_size / world_size)
    size = micro_batch_size or min(math.ceil(share / (accumulation or 1)), saved_size or share)
    needed = math.ceil(share / size)
    if accumulation and needed != accumulation:
        raise LaunchError(
            f"--batch-size {batch_size} over {world_size} processes takes {needed} micro-batches of {size},"
            f" not {accumulation} accumulation steps; leave --micro-batch-size or the accumulation to be derived"
        )
    return size, needed
