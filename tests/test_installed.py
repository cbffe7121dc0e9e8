"""The wheel: one package, which trains, predicts and exports from anywhere."""

import ast
import os
import re
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT, write_folder
from setuptools import Distribution

from installed import commands
from runtime.errors import SettingsError
from setup import NAME, OWN, BuildPackage, packages
from setup import installed as as_installed

SECONDS = 300
TINY = ["--base-channels", "2", "--depth", "2", "--plan", "none", "--max-steps", "2", "--num-workers", "0"]
# what the commands do not need, by the part of the installation that brings it
PARTS = {"train": ("datasets", "jinja2", "matplotlib", "pycocotools", "tensorboard"), "encoders": ("transformers",)}

BLOCKS = """
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {names} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""


def test_imports_and_messages_name_the_installed_package():
    source = (
        "from unet.model import UNet\n"
        "from unetlike import other\n\n\n"
        "def load():\n"
        '    """Load from runtime what is there."""\n'
        "    from train_utils.settings import (\n        flags,\n    )\n"
        '    return "pip install -r requirements-encoders.txt, or pip install -r requirements.txt"\n'
    )
    assert as_installed(source) == (
        "from unet_accelerate.unet.model import UNet\n"
        "from unetlike import other\n\n\n"
        "def load():\n"
        '    """Load from runtime what is there."""\n'
        "    from unet_accelerate.train_utils.settings import (\n        flags,\n    )\n"
        "    return \"pip install 'unet_accelerate[encoders]', or pip install 'unet_accelerate[train]'\"\n"
    )
    source = '"python -m inference.export; python -m data_utils; requirements-x.txt; pip install -r requirements-x.txt"'
    assert as_installed(source) == (
        "\"unet-export; python -m unet_accelerate.data_utils; requirements-x.txt; pip install 'unet_accelerate[x]'\""
    )
    assert as_installed("import train_other\nfrom . import x\n") == "import train_other\nfrom . import x\n"
    for name in ("train", "unet.model"):
        with pytest.raises(AssertionError, match=f"import {name}"):
            as_installed(f"import {name}\n")


def test_every_module_can_be_put_into_the_package():
    for name in packages()[2:]:
        for file in (ROOT / name.removeprefix(f"{NAME}.").replace(".", "/")).glob("*.py"):
            text = as_installed(file.read_text(encoding="utf-8"))
            compile(text, file, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
            for module in re.findall(r"^\s*from (\S+) import\b", text, re.MULTILINE):
                assert module.partition(".")[0] not in ("", *OWN), file


def test_the_package_holds_scripts_modules_profiles_and_templates_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    names = [NAME, f"{NAME}.accelerate_configs", f"{NAME}.runtime", f"{NAME}.train_utils.reporting"]
    data = {f"{NAME}.accelerate_configs": ["*.yaml"], f"{NAME}.train_utils.reporting": ["templates/*"]}
    values = {"packages": names, "package_dir": {NAME: "."}, "package_data": data, "script_name": "setup.py"}
    build = BuildPackage(Distribution(values))
    build.build_lib = str(tmp_path)
    build.ensure_finalized()
    build.run()
    folder = tmp_path / NAME
    assert os.listdir(tmp_path) == [NAME]
    scripts = {f"{name}.py" for name in ("train", "predict", "app", "compare", "review")}
    own = {file.name for file in (ROOT / "installed").glob("*.py")}
    assert "__init__.py" in own
    assert len(own) > 1
    assert set(os.listdir(folder)) == scripts | own | {"accelerate_configs", "runtime", "train_utils"}
    assert {file.name for file in (folder / "runtime").iterdir()} == {file.name for file in ROOT.glob("runtime/*.py")}
    assert (folder / "train_utils" / "reporting" / "templates" / "report.css").is_file()
    assert (folder / "accelerate_configs" / "cpu.yaml").is_file()
    source = (ROOT / "runtime" / "lock.py").read_text(encoding="utf-8")
    assert (folder / "runtime" / "lock.py").read_text(encoding="utf-8") == as_installed(source) != source


def test_the_packages_are_all_folders_of_modules(monkeypatch):
    monkeypatch.chdir(ROOT)
    names = packages()
    assert names[:3] == ["unet_accelerate", "unet_accelerate.accelerate_configs", "unet_accelerate.runtime"]
    for place in ("unet", "tasks", "data_utils.image_io", "inference.export", "train_utils.reporting.comparison"):
        assert f"unet_accelerate.{place}" in names
    assert len(set(names)) == len(names)
    assert not [name for name in names if "tests" in name or "benchmarks" in name]


TRAINING = ["datasets", "jinja2", "matplotlib", "pycocotools", "tensorboard"]
PAGES = ["jinja2", "matplotlib"]


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """What commands do: the packages that they look for, the scripts that they import, and `main` where it is run."""
    noted: list[str] = []

    def import_script(name: str, package: str) -> SimpleNamespace:
        noted.append(f"{package} {name}")
        return SimpleNamespace(main=lambda: noted.append("main"))

    monkeypatch.setattr(commands, "run_script", lambda main: main())
    monkeypatch.setattr(commands, "find_spec", lambda name: noted.append(name) or name)
    monkeypatch.setattr(commands, "import_module", import_script)
    return noted


@pytest.mark.parametrize(
    ("command", "script", "packages"),
    [
        (commands.train, ".train", TRAINING),
        (commands.predict, ".predict", []),
        (commands.app, ".app", []),
        (commands.export, ".inference.export.__main__", []),
        (commands.compare, ".compare", PAGES),
        (commands.review, ".review", PAGES),
    ],
)
def test_a_command_runs_its_script_when_the_packages_that_it_needs_are_there(calls, command, script, packages):
    command()
    assert calls == [*packages, f"installed {script}", "main"]


def test_a_command_whose_part_is_not_installed_says_which_and_does_not_begin(calls, monkeypatch):
    monkeypatch.setattr(commands, "find_spec", lambda name: None if name == "matplotlib" else name)
    with pytest.raises(SettingsError, match=r"^matplotlib is not installed: pip install 'unet_accelerate\[train\]'$"):
        commands.compare()
    assert calls == []


@pytest.mark.parametrize(("module", "is_known"), [("tensorboard.plugins", True), ("cv2", False)])
def test_a_package_that_is_missed_later_is_named_where_a_part_brings_it(calls, monkeypatch, module, is_known):
    def import_script(name: str, package: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(commands, "import_module", import_script)
    with pytest.raises(SettingsError if is_known else ModuleNotFoundError) as caught:
        commands.predict()
    line = "tensorboard is not installed: pip install 'unet_accelerate[train]'"
    assert str(caught.value) == (line if is_known else "No module named 'cv2'")


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A virtual environment with the wheel; the libraries are those of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--no-build-isolation", "-q", "-w", folder)
    (wheel,) = folder.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {NAME, f"{NAME}-0.1.0.dist-info"}
    assert f"{NAME}/accelerate_configs/multi_cpu.yaml" in names
    place = folder / "environment"
    venv.create(place, with_pip=False, symlinks=True)
    (libraries,) = place.glob("lib/python*/site-packages")
    call(sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", wheel, "--no-deps", "-q")
    (libraries / "beside.pth").write_text("\n".join(site.getsitepackages()))
    return place


def call(*command: str | Path, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess:
    """Run a command that must succeed, in an empty folder."""
    result = run(*command, folder=folder, **variables)
    assert result.returncode == 0, result.stderr
    return result


def run(*command: str | Path, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables}
    environment.pop("PYTHONPATH", None)
    environment |= variables
    words = list(map(str, command))
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)


@pytest.mark.slow
def test_the_installed_package_trains_predicts_and_exports_from_an_empty_folder(environment, tmp_path):
    commands = environment / "bin"
    data = write_folder(tmp_path / "data", 6, seed=0)
    for name in ("train", "predict", "export"):
        assert "usage: " in call(commands / f"unet-{name}", "--help", folder=tmp_path).stdout
    call(commands / "unet-train", "--dataset", data, "--output-dir", "run", *TINY, folder=tmp_path)
    assert (tmp_path / "run" / "report.html").is_file()
    call(
        commands / "unet-predict",
        "--model",
        "run/model",
        "--input",
        data / "images",
        "--output",
        "masks",
        folder=tmp_path,
    )
    call(commands / "unet-export", "run/model", "model.onnx", folder=tmp_path)
    profile = environment.glob(f"lib/python*/site-packages/{NAME}/accelerate_configs/multi_cpu.yaml")
    launcher = [environment / "bin" / "python", "-m", "accelerate.commands.launch", "--config_file", next(profile)]
    launcher += ["--num_processes", "2", "--main_process_port", "0", "-m", f"{NAME}.train"]
    flags = ["--dataset", data, "--output-dir", "two", *TINY]
    result = call(*launcher, *flags, folder=tmp_path, ACCELERATE_USE_CPU="true")
    assert "processes 2" in result.stdout
    image = str(data / "images" / "cell_00.png")
    code = f"from {NAME} import Predictor; print(Predictor.from_pretrained('run/model')({image!r}).mask.shape)"
    assert call(environment / "bin" / "python", "-c", code, folder=tmp_path).stdout.strip() == "(40, 56)"
    for name in OWN:
        assert run(environment / "bin" / "python", "-c", f"import {name}", folder=tmp_path).returncode == 1, name


@pytest.mark.slow
def test_a_part_that_is_not_installed_is_named(environment, tmp_path):
    """Prediction does without all of them."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    names = [name for part in PARTS.values() for name in part]
    (blocked / "sitecustomize.py").write_text(BLOCKS.format(names=names))
    data = write_folder(tmp_path / "data", 6, seed=0)
    commands = environment / "bin"
    call(commands / "unet-train", "--dataset", data, "--output-dir", "run", *TINY, folder=tmp_path)
    paths = {"PYTHONPATH": str(blocked)}
    predict = [commands / "unet-predict", "--model", "run/model", "--input", data / "images", "--output", "masks"]
    call(*predict, "--truth", data / "masks", folder=tmp_path, **paths)
    result = run(commands / "unet-train", "--dataset", data, *TINY, folder=tmp_path, **paths)
    assert result.returncode == 1, result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert f"is not installed: pip install '{NAME}[train]'" in result.stderr
    flags = ["--dataset", data, *TINY[2:], "--encoder", str(tmp_path), "--tracker", "none"]
    result = run(commands / "unet-train", *flags, folder=tmp_path, PYTHONPATH=str(blocked))
    assert result.returncode == 1, result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
