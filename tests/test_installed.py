"""The wheel: one package, which trains, predicts and exports from anywhere."""

import ast
import os
import re
import site
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from setuptools import Distribution
from support.folders import write_folder
from support.launches import ROOT

from installed import commands
from runtime import VERSION
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


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from unet.model import UNet\n", "from unet_accelerate.unet.model import UNet\n"),
        ("from unetlike import other\n", "from unetlike import other\n"),
        ("import train_other\nfrom . import x\n", "import train_other\nfrom . import x\n"),
        (
            "def load():\n    from train_utils.settings import (\n        flags,\n    )\n",
            "def load():\n    from unet_accelerate.train_utils.settings import (\n        flags,\n    )\n",
        ),
        ('"""Load from runtime what is there."""\n', '"""Load from runtime what is there."""\n'),
    ],
    ids=["ours", "a name that begins alike", "others", "within a function", "a docstring"],
)
def test_imports_name_the_installed_package(source, expected):
    assert as_installed(source) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("pip install -r requirements.txt", "pip install 'unet_accelerate[train]'"),
        ("see requirements.txt", "see requirements.txt"),
        ("python -m inference.export", "unet-export"),
        ("python -m data_utils", "python -m unet_accelerate.data_utils"),
    ],
)
def test_messages_name_the_installed_package(message, expected):
    assert ast.literal_eval(as_installed(f'"{message}; {message}"')) == f"{expected}; {expected}"


@pytest.mark.parametrize("name", ["train", "unet.model"])
def test_an_import_of_a_whole_module_cannot_be_put_into_the_package(name):
    with pytest.raises(AssertionError, match=f"import {name}"):
        as_installed(f"import {name}\n")


def test_every_module_can_be_put_into_the_package():
    for name in packages()[2:]:
        for file in (ROOT / name.removeprefix(f"{NAME}.").replace(".", "/")).glob("*.py"):
            text = as_installed(file.read_text(encoding="utf-8"))
            compile(text, file, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
            for module in re.findall(r"^\s*from (\S+) import\b", text, re.MULTILINE):
                assert module.partition(".")[0] not in ("", *OWN), file


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder of the package, built of the scripts, two packages of modules, the profiles and the templates.

    An earlier version's build has left a package in it that is gone.
    """
    names = [NAME, f"{NAME}.accelerate_configs", f"{NAME}.runtime", f"{NAME}.train_utils.reporting"]
    data = {f"{NAME}.accelerate_configs": ["*.yaml"], f"{NAME}.train_utils.reporting": ["templates/*"]}
    values = {"packages": names, "package_dir": {NAME: "."}, "package_data": data, "script_name": "setup.py"}
    build = BuildPackage(Distribution(values))
    build.build_lib = str(tmp_path_factory.mktemp("built"))
    left = Path(build.build_lib, NAME, "gone")
    left.mkdir(parents=True)
    (left / "__init__.py").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        build.ensure_finalized()
        build.run()
    assert os.listdir(build.build_lib) == [NAME]
    return Path(build.build_lib) / NAME


def test_the_package_holds_scripts_modules_profiles_and_templates(built):
    scripts = {f"{name}.py" for name in ("train", "predict", "app", "compare", "review")}
    own = {file.name for file in (ROOT / "installed").glob("*.py")}
    assert set(os.listdir(built)) == scripts | own | {"accelerate_configs", "runtime", "train_utils"}
    assert {file.name for file in (built / "runtime").iterdir()} == {file.name for file in ROOT.glob("runtime/*.py")}
    assert (built / "train_utils" / "reporting" / "templates" / "report.css").is_file()
    assert (built / "accelerate_configs" / "cpu.yaml").is_file()
    source = (ROOT / "runtime" / "machine.py").read_text(encoding="utf-8")
    assert (built / "runtime" / "machine.py").read_text(encoding="utf-8") == as_installed(source) != source


def test_the_packages_are_the_scripts_and_all_folders_of_modules(monkeypatch):
    monkeypatch.chdir(ROOT)
    names = packages()
    assert names[:3] == ["unet_accelerate", "unet_accelerate.accelerate_configs", "unet_accelerate.runtime"]
    for place in ("unet", "tasks", "data_utils.image_io", "inference.export", "train_utils.comparison"):
        assert names.count(f"unet_accelerate.{place}") == 1
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


@pytest.fixture
def typed(monkeypatch) -> Callable[[str], None]:
    """A function that runs a command of the package."""

    def typed(command: str) -> None:
        monkeypatch.setattr(sys, "argv", [f"/environment/bin/{command}"])
        commands.main()

    return typed


@pytest.mark.parametrize(
    ("command", "script", "packages"),
    [
        ("unet-train", ".train", TRAINING),
        ("unet-predict", ".predict", []),
        ("unet-app", ".app", []),
        ("unet-export", ".inference.export.__main__", []),
        ("unet-compare", ".compare", PAGES),
        ("unet-review", ".review", PAGES),
    ],
)
def test_a_command_runs_its_script_when_its_packages_are_there(calls, typed, command, script, packages):
    typed(command)
    assert calls == [*packages, f"installed {script}", "main"]


def test_a_link_of_another_name_runs_the_command(calls, monkeypatch, tmp_path):
    link = tmp_path / "unet-predict-3.0"  # as pipx makes it with --suffix
    link.symlink_to("/environment/bin/unet-predict")
    monkeypatch.setattr(sys, "argv", [str(link)])
    commands.main()
    assert calls == ["installed .predict", "main"]


def test_a_command_whose_part_is_not_installed_does_not_begin(calls, typed, monkeypatch):
    monkeypatch.setattr(commands, "find_spec", lambda name: None if name == "matplotlib" else name)
    with pytest.raises(SettingsError, match=r"^matplotlib is not installed: pip install 'unet_accelerate\[train\]'$"):
        typed("unet-compare")
    assert calls == []


@pytest.mark.parametrize(
    ("module", "error", "line"),
    [
        ("tensorboard.plugins", SettingsError, r"tensorboard is not installed: pip install 'unet_accelerate\[train\]'"),
        ("cv2", ModuleNotFoundError, "No module named 'cv2'"),  # no part brings it
        (None, ModuleNotFoundError, "No module named None"),
    ],
)
def test_a_package_that_is_missed_later_is_named_where_a_part_brings_it(monkeypatch, calls, typed, module, error, line):
    def import_script(name: str, package: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(commands, "import_module", import_script)
    with pytest.raises(error, match=f"^{line}$"):
        typed("unet-predict")


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A virtual environment with the wheel; the libraries are those of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--no-build-isolation", "-q", "-w", folder)
    (wheel,) = folder.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {NAME, f"{NAME}-{VERSION}.dist-info"}
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


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder of six images with masks."""
    return write_folder(tmp_path_factory.mktemp("data") / "data", 6, seed=0)


@pytest.fixture(scope="module")
def trained_folder(environment, data, tmp_path_factory) -> Path:
    """A folder, empty before, in which the installed command has trained a model: run/."""
    folder = tmp_path_factory.mktemp("trained")
    call(environment / "bin" / "unet-train", "--dataset", data, "--output-dir", "run", *TINY, folder=folder)
    return folder


@pytest.mark.slow
def test_the_installed_package_trains_predicts_and_exports(environment, data, trained_folder, tmp_path):
    assert (trained_folder / "run" / "report.html").is_file()
    flags = ["--model", "run/model", "--input", data / "images", "--output", tmp_path / "masks"]
    call(environment / "bin" / "unet-predict", *flags, folder=trained_folder)
    call(environment / "bin" / "unet-export", "run/model", tmp_path / "model.onnx", folder=trained_folder)
    assert "usage: " in call(environment / "bin" / "unet-train", "--help", folder=tmp_path).stdout


@pytest.mark.slow
def test_the_installed_package_trains_in_two_processes(environment, data, tmp_path):
    (profile,) = environment.glob(f"lib/python*/site-packages/{NAME}/accelerate_configs/multi_cpu.yaml")
    launcher = [environment / "bin" / "python", "-m", "accelerate.commands.launch", "--config_file", profile]
    launcher += ["--num_processes", "2", "--main_process_port", "0", "-m", f"{NAME}.train"]
    flags = ["--dataset", data, "--output-dir", "two", *TINY]
    result = call(*launcher, *flags, folder=tmp_path, ACCELERATE_USE_CPU="true")
    assert "processes 2" in result.stdout


@pytest.mark.slow
def test_the_installed_package_is_imported_by_its_name(environment, data, trained_folder):
    image = str(data / "images" / "cell_00.png")
    code = f"from {NAME} import Predictor; print(Predictor.from_pretrained('run/model')({image!r}).mask.shape)"
    assert call(environment / "bin" / "python", "-c", code, folder=trained_folder).stdout.strip() == "(40, 56)"


@pytest.mark.slow
def test_the_installed_package_leaves_other_names_free(environment, tmp_path):
    for name in OWN:
        assert run(environment / "bin" / "python", "-c", f"import {name}", folder=tmp_path).returncode == 1, name


@pytest.fixture(scope="module")
def without_parts(tmp_path_factory) -> dict[str, str]:
    """The variables with which an interpreter finds none of the packages of `PARTS`."""
    blocked = tmp_path_factory.mktemp("blocked")
    names = [name for part in PARTS.values() for name in part]
    (blocked / "sitecustomize.py").write_text(BLOCKS.format(names=names))
    return {"PYTHONPATH": str(blocked)}


@pytest.mark.slow
def test_prediction_needs_no_part(environment, data, trained_folder, tmp_path, without_parts):
    flags = ["--model", "run/model", "--input", data / "images", "--output", tmp_path / "masks"]
    call(
        environment / "bin" / "unet-predict", *flags, "--truth", data / "masks", folder=trained_folder, **without_parts
    )


@pytest.mark.slow
def test_a_part_that_is_not_installed_is_named(environment, data, tmp_path, without_parts):
    train = environment / "bin" / "unet-train"
    result = run(train, "--dataset", data, *TINY, folder=tmp_path, **without_parts)
    assert f"is not installed: pip install '{NAME}[train]'" in result.stderr
    flags = ["--dataset", data, *TINY[2:], "--encoder", str(tmp_path), "--tracker", "none"]
    of_encoder = run(train, *flags, folder=tmp_path, **without_parts)
    for refused in (result, of_encoder):
        assert refused.returncode == 1, refused.stderr
        assert refused.stderr.count("\n") == 1, refused.stderr
