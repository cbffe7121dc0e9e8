"""The commands of the installed package. Each runs a script, or says which part of the package to install for it."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from runtime.errors import SettingsError
from runtime.script import run_script

# the part of the installation that brings a package, by the package's name in Python
PARTS = dict.fromkeys(("datasets", "jinja2", "matplotlib", "pycocotools", "tensorboard"), "train")
PAGES = ("jinja2", "matplotlib")
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {  # its module, and the packages without which it does not begin
    "unet-train": (".train", tuple(PARTS)),
    "unet-predict": (".predict", ()),
    "unet-app": (".app", ()),
    "unet-export": (".inference.export.__main__", ()),
    "unet-compare": (".compare", PAGES),
    "unet-review": (".review", PAGES),
}


def main() -> None:
    """Run the script of the command that was typed."""
    run_script(_run)


def _run() -> None:
    """Run a script's `main`. Raises SettingsError if a package is missing."""
    module, needs = COMMANDS[Path(sys.argv[0]).resolve().stem]  # also by a link of another name
    try:
        for name in needs:
            if find_spec(name) is None:
                raise ModuleNotFoundError(name=name)
        import_module(module, __package__).main()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in PARTS:
            raise
        line = f"{package} is not installed: pip install 'unet_accelerate[{PARTS[package]}]'"
        raise SettingsError(line) from error
