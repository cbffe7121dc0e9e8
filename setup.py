"""The wheel: one package, unet_accelerate, with the scripts and packages of this folder below it.

Here they lie side by side, since `accelerate launch train.py` runs them so. In the wheel each import of one of them,
and each command in a message, has the package's name.
"""

import ast
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

NAME = "unet_accelerate"
SCRIPTS = ("train", "predict", "app", "compare", "review")
PACKAGES = ("runtime", "unet", "tasks", "data_utils", "inference", "train_utils")
OWN = (*SCRIPTS, *PACKAGES)
MESSAGES = {  # what messages say, as a pattern, and what they say of the installed package
    r"pip install -r requirements\.txt": f"pip install '{NAME}[train]'",
    r"python -m inference\.export": "unet-export",
    r"python -m data_utils": f"python -m {NAME}.data_utils",
}


def installed(source: str) -> str:
    """The text of a module in the wheel."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.partition(".")[0] in OWN]
            assert not names, f"import {names[0]}: only `from {names[0]} import ...` can be put into a package"
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OWN:
            index = node.lineno - 1
            lines[index] = lines[index].replace(f"from {node.module}", f"from {NAME}.{node.module}", 1)
    text = "".join(lines)
    for pattern, replacement in MESSAGES.items():
        text = re.sub(pattern, replacement, text)
    return text


class BuildPackage(build_py):
    """Copies modules as they are to be in the wheel; of this folder's own, the scripts."""

    def run(self) -> None:
        # an earlier version's build may have left modules that are gone, or packages that are modules now
        shutil.rmtree(Path(self.build_lib, NAME), ignore_errors=True)
        super().run()

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules = super().find_package_modules(package, package_dir)
        if package != NAME:
            return modules
        scripts = [module for module in modules if module[1] in SCRIPTS]
        return scripts + super().find_package_modules(package, "installed")

    def build_module(self, module: str, module_file: str, package: str) -> tuple[str, bool]:
        output, is_copied = super().build_module(module, module_file, package)
        Path(output).write_text(installed(Path(module_file).read_text(encoding="utf-8")), encoding="utf-8")
        return output, is_copied


def packages() -> list[str]:
    """The packages of the wheel."""
    names = [NAME, f"{NAME}.accelerate_configs"]
    for package in PACKAGES:
        folders = {module.parent for module in Path(package).rglob("*.py")}
        names += [".".join((NAME, *folder.parts)) for folder in sorted(folders)]
    return names


if __name__ == "__main__":
    setup(
        packages=packages(),
        package_dir={NAME: "."},
        package_data={f"{NAME}.accelerate_configs": ["*.yaml"], f"{NAME}.train_utils.reporting": ["templates/*"]},
        cmdclass={"build_py": BuildPackage},
    )
