"""Start an Accelerator behind the guards of runtime.launch, and print as JSON what the profile decided.

With `--unguarded` the check before `Accelerator()` is left out.
"""

import json
import sys

from accelerate import Accelerator

from runtime.errors import LaunchError
from runtime.launch import check_launch, check_processes, describe_profile, set_launch_environment

try:
    if "--unguarded" not in sys.argv:
        set_launch_environment()
        check_launch()
    accelerator = Accelerator()
    check_processes(accelerator)
except LaunchError as error:
    sys.exit(f"{type(error).__name__}: {error}")
accelerator.print(json.dumps(describe_profile(accelerator).to_json()))
accelerator.end_training()
