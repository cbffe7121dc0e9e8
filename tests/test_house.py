"""The house rules of the code, held by reading it: who may import whom, between the packages and inside them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# a package imports only what stands to its left
ORDER = ("runtime", "unet", "data_utils", "tasks", "inference", "train_utils")
# inside a package too: a module imports only what stands in its own row or above; rooms are folders and modules
ROOMS = {
    "unet": ("norms", "blocks", "config", "backbone model_files", "model"),
    "tasks": (
        "drawing",
        "tables job charts section",
        "confusion",
        "calibration",
        "task",
        "prediction step_loss losses",
        "prediction_files",
        "polygons scoring",
        "prediction_format",
        "kind classes",
        "overlapping objects landmarks",
        "find_task",
    ),
    "data_utils": (
        "target bits point_states config class_map class_names mask_values",
        "image_io",
        "sources",
        "targets",
        "analysis",
        "loading",
        "pack shapes",
    ),
    "inference": (
        "pytorch_unet",
        "models network_inputs tiling",
        "views",
        "predictor",
        "predict_settings",
        "requested_outputs report inputs",
        "true_masks true_points output_folder",
        "work pipeline",
        "export page",
    ),
    "train_utils": (
        "dataset",
        "check_data",
        "optim",
        "settings",
        "metrics_log sync_batchnorm sharding meter tracker",
        "compilation ema",
        "evaluation",
        "run_state",
        "schedule memory slabs",
        "step_guard",
        "step",
        "reporting",
        "comparison",
        "review",
        "checkpoints",
        "start",
        "run_log",
    ),
}
SCRIPTS = ("train.py", "predict.py", "app.py", "compare.py", "review.py")
LAUNCHED = ("train.py", "predict.py")  # by accelerate
# library: the places that may import it
ONLY_IN = {
    "accelerate": (
        "train_utils/",
        *(f"runtime/{name}.py" for name in ("launch", "distributed")),
        *LAUNCHED,
    ),
    "nibabel": ("data_utils/image_io/",),
    "pydicom": ("data_utils/image_io/dicom/",),
    "highdicom": ("data_utils/image_io/dicom/",),
    "gradio": ("app.py",),
    "transformers": ("unet/backbone.py",),
}
NOT_IN = {
    "unet/": ("PIL", "tifffile", "nibabel", "argparse"),
    "tasks/": ("nibabel", "argparse"),
    "runtime/": ("PIL", "tifffile", "datasets"),
    "app.py": ("train_utils",),  # a Space is a copy of it and of the other packages
}
NOT_AT_START = (
    "matplotlib",
    "scipy",
    "transformers",
    "jinja2",
    "datasets",
    "onnx",
    "onnxruntime",
    "pandas",
    "gradio",
    "nibabel",
    "skimage",
    "pyarrow",
    "tensorboard",
    "rasterio",
    "pyogrio",
    "shapely",
    "pydicom",
    "highdicom",
)
IMPORT_OF_A_TEST = re.compile(r"^\s*(?:import|from)\s+((?:\w+\.)?test_\w+)", re.MULTILINE)


@cache
def parse(file: Path) -> ast.Module:
    """What a file says; several tests look at the same files."""
    return ast.parse(file.read_text(encoding="utf-8"))


def modules(root: Path) -> dict[str, ast.Module]:
    """Path below `root` -> what it says, of the scripts and of all packages."""
    files = [root / script for script in SCRIPTS if (root / script).exists()]
    files += [file for package in ORDER for file in sorted((root / package).rglob("*.py"))]
    return {file.relative_to(root).as_posix(): parse(file) for file in files}


def imports(tree: ast.AST, *, at_start: bool = False) -> Iterator[str]:
    """Full names of the modules that are imported, wherever it stands or, `at_start`, when the module is."""
    for node in tree.body if at_start else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif at_start and isinstance(node, ast.If | ast.Try | ast.With) and not is_for_types(node):
            yield from imports(node, at_start=True)


def is_for_types(node: ast.AST) -> bool:
    """Whether it is `if TYPE_CHECKING:`, which never runs."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def wrong_imports(root: Path) -> list[str]:
    """One line for each import that breaks the order of the packages or the place of a library."""
    problems = set()
    for path, tree in modules(root).items():
        package = path.partition("/")[0]
        allowed = {*ORDER[: ORDER.index(package) + 1]} if package in ORDER else {*ORDER}
        forbidden = {*ORDER} - allowed
        for script in SCRIPTS:
            forbidden.add(script.removesuffix(".py"))
        for library, places in ONLY_IN.items():
            if not path.startswith(places):
                forbidden.add(library)
        for place, libraries in NOT_IN.items():
            if path.startswith(place):
                forbidden.update(libraries)
        for name in imports(tree):
            library = name.partition(".")[0]
            if library in forbidden:
                problems.add(f"{path} imports {library}")
        for name in imports(tree, at_start=True):
            library = name.partition(".")[0]
            if library in NOT_AT_START:
                problems.add(f"{path} imports {library} at its start")
    return sorted(problems)


def import_cycles(root: Path) -> list[str]:
    """Modules that import each other when they are imported, along any way."""
    trees = modules(root)
    paths = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in trees}
    edges = {}
    for name, path in paths.items():
        imported_modules = set(imports(trees[path], at_start=True)) & paths.keys()
        edges[name] = imported_modules - {name}
    leaves = leaves_of(edges)
    while leaves:
        for name in leaves:
            del edges[name]
        leaves = leaves_of(edges)
    # what is left imports what is left; walk until a module comes again
    cycles = set()
    for name in edges:
        way = [name]
        following = min(edges[name] & edges.keys())
        while following not in way:
            way.append(following)
            following = min(edges[following] & edges.keys())
        cycles.add(frozenset(way[way.index(following) :]))
    return sorted(" <-> ".join(sorted(cycle)) for cycle in cycles)


def leaves_of(edges: dict[str, set[str]]) -> list[str]:
    """The modules that import none of the others."""
    return [name for name, targets in edges.items() if not targets & edges.keys()]


def upward_imports(root: Path) -> list[str]:
    """One line for each import between the rooms of a package that runs up, and for each room without a place."""
    problems = []
    for path, tree in modules(root).items():
        package, _, below = path.partition("/")
        room = below.partition("/")[0].removesuffix(".py")
        if package not in ROOMS or room == "__init__":
            continue
        place_of = {name: place for place, names in enumerate(ROOMS[package]) for name in names.split()}
        if room not in place_of:
            problems.append(f"{path} has no place")
            continue
        for name in sorted(set(imports(tree))):
            parts = name.split(".")
            if parts[0] == package and len(parts) > 1 and place_of.get(parts[1], 0) > place_of[room]:
                problems.append(f"{path} imports {name}")
    return problems


def imports_of_tests(folder: Path) -> list[str]:
    """One line for each test file that imports another."""
    problems = set()
    for path in sorted(folder.rglob("*.py")):
        for name in IMPORT_OF_A_TEST.findall(path.read_text(encoding="utf-8")):
            problems.add(f"{path.name} imports {name.split('.')[0]}")
    return sorted(problems)


def named_by_tests(root: Path) -> set[str]:
    """The paths of modules that the first docstrings of test files name."""
    names: set[str] = set()
    for path in (root / "tests").rglob("test_*.py"):
        _, _, text = path.read_text(encoding="utf-8").partition('"""')
        words = {word.rstrip(".,") for word in text.partition('"""')[0].split()}
        names |= {word for word in words if word.endswith(".py") and "/" in word}
    return names


def modules_without_tests(root: Path) -> list[str]:
    """Modules a/b.py without a tests/a/test_b.py, and whose path the first docstring of no test file names."""
    mentioned = named_by_tests(root)
    missing = []
    for module in modules(root):
        path = Path(module)
        is_found_by_name = (root / "tests" / path.parent / f"test_{path.name}").exists()
        if "/" in module and path.name != "__init__.py" and module not in mentioned and not is_found_by_name:
            missing.append(module)
    return missing


def test_packages_import_only_what_they_may():
    assert wrong_imports(ROOT) == []


def test_imports_between_the_rooms_of_a_package_run_one_way():
    assert upward_imports(ROOT) == []


def test_an_import_that_runs_up_is_found(tmp_path):
    files = {
        "data_utils/sources/load.py": "from data_utils.loading.crop import crop_window",
        "data_utils/loading/crop.py": "def f():\n    import data_utils.image_io.resize",
        "data_utils/utils.py": "",
    }
    assert upward_imports(write(tmp_path, files)) == [
        "data_utils/sources/load.py imports data_utils.loading.crop",
        "data_utils/sources/load.py imports data_utils.loading.crop.crop_window",
        "data_utils/utils.py has no place",
    ]


def test_no_module_imports_itself_along_any_way():
    assert import_cycles(ROOT) == []


def test_no_test_imports_a_test():
    assert imports_of_tests(ROOT / "tests") == []


def test_every_module_has_tests_that_are_found_by_its_name():
    assert modules_without_tests(ROOT) == []


def test_modules_that_tests_name_are_there():
    assert [name for name in sorted(named_by_tests(ROOT)) if not (ROOT / name).exists()] == []


def write(root: Path, files: dict[str, str]) -> Path:
    for path, source in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(source)
    return root


@pytest.mark.parametrize(
    ("file", "source", "problem"),
    [
        ("unet/deep/blocks.py", "def f():\n    from accelerate.utils import gather", "imports accelerate"),
        ("data_utils/class_map.py", "if True:\n    import tasks.classes as x", "imports tasks"),
        ("unet/config.py", "from PIL import Image", "imports PIL"),
        ("runtime/files.py", "from unet import UNet", "imports unet"),
        ("data_utils/sources/load.py", "def f():\n    import nibabel", "imports nibabel"),
        ("train_utils/reporting/report.py", "import predict", "imports predict"),
        ("inference/page.py", "def f():\n    import gradio", "imports gradio"),
        ("app.py", "from train_utils.schedule import Schedule", "imports train_utils"),
        ("tasks/charts.py", "import matplotlib.figure", "imports matplotlib at its start"),
        ("data_utils/pack.py", "try:\n    import datasets\nexcept OSError:\n    pass", "imports datasets at its start"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path, file, source, problem):
    assert wrong_imports(write(tmp_path, {file: source})) == [f"{file} {problem}"]


def test_an_allowed_import_is_not_reported(tmp_path):
    files = {
        "train_utils/memory.py": "import accelerate\nimport train_other\nfrom .unet import x\nfrom unet import y",
        "runtime/launch.py": "from accelerate import Accelerator",
        "data_utils/pack.py": "from unet.config import Preprocess\nimport PIL\ndef f():\n    import datasets",
        "data_utils/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from datasets import Dataset",
        "train.py": "import unet, data_utils, train_utils, accelerate",
    }
    assert wrong_imports(write(tmp_path, files)) == []


def test_an_import_cycle_is_found(tmp_path):
    files = {
        "unet/a.py": "import unet.b",
        "unet/b.py": "from unet.c import x",
        "unet/c.py": "from unet import a",
        "unet/d.py": "from unet import a\ndef f():\n    import unet.e",
        "unet/e.py": "import unet.d",
    }
    assert import_cycles(write(tmp_path, files)) == ["unet.a <-> unet.b <-> unet.c"]


def test_a_module_without_tests_is_found_and_not_by_the_name_of_another(tmp_path):
    names = ("unet/a.py", "unet/b.py", "unet/__init__.py", "runtime/c.py", "train.py", "tasks/a.py", "unet/in/b.py")
    tests = {"tests/unet/test_a.py": "", "tests/test_more.py": '"""More.\n\nModules: unet/in/b.py, runtime/c.py.\n"""'}
    assert modules_without_tests(write(tmp_path, dict.fromkeys(names, "") | tests)) == ["unet/b.py", "tasks/a.py"]


def test_a_test_that_imports_a_test_is_found(tmp_path):
    write(tmp_path, {"test_a.py": "from test_b import helper\nfrom conftest import launch", "test_b.py": "import os"})
    assert imports_of_tests(tmp_path) == ["test_a.py imports test_b"]
