"""Start an Accelerator behind the guards of runtime.launch, and print as JSON what the profile decided.

`has_compiler` says whether torch's compiler was imported. With `--unguarded` the check before `Accelerator()` is left
out.
"""

import json
import sys

from accelerate import Accelerator

from runtime.errors import LaunchError
from runtime.launch import check_launch, configure_process, describe_profile

try:
    if "--unguarded" not in sys.argv:
        check_launch()
    accelerator = Accelerator()
    configure_process(accelerator)
except LaunchError as error:
    sys.exit(f"{type(error).__name__}: {error}")
profile = describe_profile(accelerator)
accelerator.print(json.dumps({"profile": profile, "has_compiler": "torch._dynamo" in sys.modules}))
accelerator.end_training()
