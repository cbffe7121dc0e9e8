"""pip's place in a folder of modules: it tells a version, and refuses requirements that cannot be had."""

import sys
from pathlib import Path

if "--version" in sys.argv:
    print("pip 25.0")
elif "no-such-package" in Path(sys.argv[-1]).read_text():
    sys.exit("no such package")
