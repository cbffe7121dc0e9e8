"""The commands of the installed package. Each runs a script, or says which part of the package to install for it."""

from importlib import import_module
from importlib.util import find_spec

from runtime.errors import SettingsError
from runtime.script import run_script

# the part of the installation that brings a package, by the package's name in Python
PARTS = dict.fromkeys(("datasets", "jinja2", "matplotlib", "pycocotools", "tensorboard"), "train")


def train() -> None:
    """unet-train: train.py in one process; for several processes: accelerate launch -m unet_accelerate.train."""
    run_script(lambda: _run(".train", needs=tuple(PARTS)))


def predict() -> None:
    """unet-predict: predict.py."""
    run_script(lambda: _run(".predict"))


def app() -> None:
    """unet-app: app.py."""
    run_script(lambda: _run(".app"))


def export() -> None:
    """unet-export: python -m inference.export."""
    run_script(lambda: _run(".inference.export.__main__"))


def compare() -> None:
    """unet-compare: compare.py."""
    run_script(lambda: _run(".compare", needs=("jinja2", "matplotlib")))


def review() -> None:
    """unet-review: review.py."""
    run_script(lambda: _run(".review", needs=("jinja2", "matplotlib")))


def _run(module: str, needs: tuple[str, ...] = ()) -> None:
    """Run a script's `main`. Raises SettingsError if a package is missing; packages of `needs` are checked first."""
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
