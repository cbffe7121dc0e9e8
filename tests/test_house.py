"""The house rules of the code: who may import whom, and how long a file may grow."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = {"train": 350, "predict": 200}  # lines
MODULE_LINES = 250
MAY_NOT_IMPORT = {
    "unet": {"accelerate", "data_utils", "train_utils", *SCRIPTS},
    "data_utils": {"accelerate", "unet", "train_utils", *SCRIPTS},
    "train_utils": {"unet", "data_utils", *SCRIPTS},
}


def imported_packages(source: str) -> set[str]:
    """Top-level names of everything a module imports, wherever in it the import stands."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def forbidden_imports(root: Path) -> list[str]:
    """One line for each file and package it must not import."""
    return [
        f"{path.relative_to(root).as_posix()} imports {name}"
        for package, forbidden in MAY_NOT_IMPORT.items()
        for path in sorted((root / package).rglob("*.py"))
        for name in sorted(imported_packages(path.read_text(encoding="utf-8")) & forbidden)
    ]


def files_over_budget(root: Path) -> list[str]:
    """One line for each script or module that is longer than it may be."""
    budgets = {root / f"{script}.py": lines for script, lines in SCRIPTS.items() if (root / f"{script}.py").exists()}
    for package in MAY_NOT_IMPORT:
        budgets |= {path: MODULE_LINES for path in sorted((root / package).rglob("*.py"))}
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in budgets}
    return [
        f"{path.relative_to(root).as_posix()} has {lengths[path]} lines, {budget} allowed"
        for path, budget in budgets.items()
        if lengths[path] > budget
    ]


def test_packages_import_only_what_they_may():
    assert forbidden_imports(ROOT) == []


def test_files_keep_their_line_budgets():
    assert files_over_budget(ROOT) == []


@pytest.mark.parametrize(
    ("file", "source", "name"),
    [
        ("unet/model.py", "import torch, accelerate", "accelerate"),
        ("unet/deep/blocks.py", "def f():\n    from accelerate.utils import gather", "accelerate"),
        ("unet/losses.py", "if True:\n    import data_utils.masks as masks", "data_utils"),
        ("data_utils/masks.py", "from unet import UNet", "unet"),
        ("data_utils/sources.py", "from train_utils.meter import Meter", "train_utils"),
        ("train_utils/ema.py", "from unet.model import UNet", "unet"),
        ("train_utils/report.py", "import data_utils", "data_utils"),
        ("train_utils/meter.py", "from train import evaluate", "train"),
        ("data_utils/overlay.py", "import predict", "predict"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path, file, source, name):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert forbidden_imports(tmp_path) == [f"{file} imports {name}"]


def test_an_allowed_import_is_not_reported(tmp_path):
    (tmp_path / "train_utils").mkdir()
    source = "import accelerate\nimport unet_other\nfrom .unet import x\nfrom train_utils.ema import EMA\n"
    (tmp_path / "train_utils" / "memory.py").write_text(source)
    (tmp_path / "train.py").write_text("import unet, data_utils, train_utils")
    assert forbidden_imports(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "budget"), [("train.py", 350), ("predict.py", 200), ("unet/model.py", 250), ("data_utils/deep/a.py", 250)]
)
def test_a_file_over_its_budget_is_found(tmp_path, file, budget):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x = 1\n" * budget)
    assert files_over_budget(tmp_path) == []
    path.write_text("x = 1\n" * (budget + 1))
    assert files_over_budget(tmp_path) == [f"{file} has {budget + 1} lines, {budget} allowed"]
