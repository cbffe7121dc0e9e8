"""One of two processes on two machines, which wait for each other without a time limit.

`wait_for_machine.py RANK ADDRESS FILE SECONDS`: rank 0 never comes; rank 1 makes FILE when it begins to wait, and ends
with the line that a script would print. A machine is taken for lost after SECONDS without an answer.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from runtime import distributed

rank, address, file, seconds = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])
dist.init_process_group("gloo", f"tcp://{address}:29500", rank=rank, world_size=2)
distributed.notice_lost_machines(timedelta(seconds=seconds))
if rank == 0:
    time.sleep(300)
file.touch()
try:
    dist.barrier(group=distributed._group_without_timeout())
except RuntimeError as error:
    sys.exit(distributed.describe_lost_process(error))
