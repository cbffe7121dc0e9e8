"""The documentation: every command parses, every file and link is there, and what needs nothing special is run.

A command in a ```sh block that needs something says so behind it: `# needs a GPU`. The others are run, with few steps
and a small network, in a folder that looks like a checkout with a data set DATA beside it.
"""

import argparse
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate.commands.launch import launch_command_parser
from support.forks import launch_forked
from support.launches import ROOT
from support.pytorch_unet import pytorch_unet_checkpoint
from torch.distributed.run import get_args_parser

import inference.predict_settings
import train_utils.settings.flags
from inference.predict_settings import PredictSettings
from runtime.cli import Arguments
from runtime.settings import add_settings
from train_utils.settings.train_settings import TrainSettings

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SMALL = {  # flags that make a documented command quick
    "train.py": "--max-steps 2 --base-channels 4 --depth 2 --num-workers 0",
    "python -m data_utils.shapes": "--train 4 --val 2",
}
COMMAND = r"(\w+=\S+ )*(accelerate launch|torchrun|python3?) .*((train|predict|app|compare|review)\.py|benchmarks/|-m )"
# commands of the wheel
INSTALLED = {f"unet-{name}": f"{name}.py" for name in ("train", "predict", "app", "compare", "review")}
OTHERS = {"pip", "mypy", "pytest", "pre-commit", "tensorboard", "hf", "docker", "git", ".ci/run"}  # not ours to parse
# flags that the documentation names and that belong to programs of other people
FOREIGN = {"--amp", "--bilinear", "--load", "--mask-threshold", "--no-save", "--validation", "--viz"}  # Pytorch-UNet
FOREIGN |= {"--ipc", "--shm-size", "--gpus", "--pid", "--logdir", "--signal"}


def blocks(page: Path) -> list[str]:
    """Commands of the ```sh blocks, continued lines joined."""
    text = "\n".join(re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def inline(page: Path) -> list[str]:
    """Whole commands in `backticks`."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    spans = [
        re.sub(r"predict\.py$", "predict.py --model M --input I --output O", span) for span in spans
    ]  # a way to launch
    return [span for span in spans if re.match(COMMAND, span)]


class Parsed(Exception):
    """Raised where a script would begin its work."""


def stopping_after(parse_args: Callable) -> Callable:
    def parse_and_stop(parser: argparse.ArgumentParser, *_) -> None:
        parse_args(parser)
        raise Parsed

    return parse_and_stop


def parse_script(script: str, flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the script's own parser, for a user with a token of the Hub; SystemExit where it refuses."""
    monkeypatch.setattr(sys, "argv", [script, *flags])
    monkeypatch.setenv("HF_TOKEN", "secret")
    if script == "train.py":
        train_utils.settings.flags.parse_args("")
    elif script == "predict.py":
        inference.predict_settings.parse_args("")
    else:
        # our own parser overrides argparse's; where neither stopped it, the tool would really run
        with monkeypatch.context() as patch, pytest.raises(Parsed):
            for kind in (argparse.ArgumentParser, Arguments):
                patch.setattr(kind, "parse_args", stopping_after(kind.parse_args))
            module = script.removesuffix(".py").replace("/", ".")
            if importlib.util.find_spec(module).submodule_search_locations is not None:
                module += ".__main__"  # of a package that is run
            importlib.import_module(module).main()


def check(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse a command by the parsers of the launcher and of the script."""
    words = [re.sub(r"^N$", "0", word) for word in shlex.split(command, comments=True) if word not in ("...", "--help")]
    while re.match(r"\w+=", words[0]):
        words.pop(0)
    if words[:2] == ["python3", "bootstrap.py"]:
        words = words[2:]
        if words[0].endswith(".py"):
            words.insert(0, "python")
    for word in words:
        if re.match(r"(docs|tests|benchmarks|accelerate_configs)/|\w+\.py$", word):
            assert (ROOT / word).exists(), f"{command}: there is no {word}"
    if words[0] == "docker" and "accelerate" in words:
        words = words[words.index("accelerate") :]
    if words[0] in INSTALLED:
        words = ["python", INSTALLED[words[0]], *words[1:]]
    if words[:2] == ["accelerate", "launch"]:
        launched = launch_command_parser().parse_args(words[2:])
        script = launched.training_script
        if launched.module:  # of the installed package
            script = f"{script.removeprefix('unet_accelerate.')}.py"
        parse_script(script, launched.training_script_args, monkeypatch)
    elif words[0] == "torchrun":
        launched = get_args_parser().parse_args(words[1:])
        parse_script(launched.training_script, launched.training_script_args, monkeypatch)
    elif words[0] in ("python", "python3") and words[1] == "-m":
        parse_script(words[2], words[3:], monkeypatch)
    elif words[0] in ("python", "python3"):
        parse_script(words[1], words[2:], monkeypatch)
    elif words[0] == "sbatch":
        (script,) = (index for index, word in enumerate(words) if word.endswith(".sbatch"))
        parse_script("train.py", words[script + 1 :], monkeypatch)
    else:
        assert words[0] in OTHERS, f"{command}: is no command that this test knows"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_parses(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # DATA, OUT and the like are nowhere
    (tmp_path / "runs" / "cells").mkdir(parents=True)
    (tmp_path / "runs" / "cells" / "run.json").write_text('{"flags": {}}')  # which --like reads
    for command in [*blocks(page), *inline(page)]:
        try:
            check(command, monkeypatch)
        except SystemExit:
            pytest.fail(f"{page.name}: {command}: is refused by its own parser")


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --lernrate 1",
        "accelerate launch --num_proceses 2 train.py",
        "python predict.py",
        "torchrun --nproc 2 train.py --epochs x",
        "python -m inference.export onlyone",
    ],
)
def test_a_command_with_a_mistake_is_found(monkeypatch, command):
    with pytest.raises(SystemExit):
        check(command, monkeypatch)


def test_a_command_that_names_a_missing_file_is_found(monkeypatch):
    with pytest.raises(AssertionError, match=r"there is no accelerate_configs/gpu\.yaml"):
        check("accelerate launch --config_file accelerate_configs/gpu.yaml train.py", monkeypatch)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page):
    text = page.read_text()
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        target = page.parent / link if link else page
        assert link.startswith("https://") or target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_named_on_a_page_exists(page):
    folders = "accelerate_configs|benchmarks|docs|tests|runtime|unet|tasks|data_utils|inference|train_utils"
    for name in re.findall(rf"`((?:{folders})/[\w./-]+)`", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def known_flags() -> set[str]:
    """Every flag of the scripts and the launchers."""
    files = [ROOT / name for name in ("app.py", "compare.py", "review.py")]
    files += [
        path for folder in ("data_utils", "inference/export", "benchmarks") for path in (ROOT / folder).glob("*.py")
    ]
    flags = {flag for path in files for flag in re.findall(r'"(--[a-z][\w-]*)"', path.read_text())}
    settings = argparse.ArgumentParser(conflict_handler="resolve")
    for kind in (TrainSettings, PredictSettings):
        add_settings(settings, kind)
        flags.update(settings._option_string_actions)
    for parser in (launch_command_parser(), get_args_parser()):
        flags |= {flag for action in parser._actions for flag in action.option_strings}
    return flags


def test_commands_and_links_are_found_to_be_checked():
    """The tests above go over what these patterns find."""
    assert sum(len(blocks(page)) for page in PAGES) > 20
    assert sum(len(inline(page)) for page in PAGES) > 5
    assert len(re.findall(r"\]\(([^)#\s]+)\)", (ROOT / "README.md").read_text())) > 5


def test_every_flag_named_in_the_text_exists():
    existing_flags, checked = known_flags(), set()
    for page in PAGES:
        spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE))
        spans = [span for span in spans if not re.match("[0-9a-f]{8}:", span)]  # scripts of a commit, not kept
        mentioned_flags = {flag for span in spans for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", span)}
        assert mentioned_flags - existing_flags - FOREIGN == set(), page.name
        checked |= mentioned_flags
    assert len(checked) > 30


@pytest.fixture
def checkout(tmp_path, tiny_folder) -> Path:
    """The repository's files, the data set DATA, and what else the documentation's commands speak of."""
    for path in ROOT.iterdir():
        if path.name not in (".git", ".venv", "runs") and not path.name.endswith("_cache"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "DATA").symlink_to(tiny_folder)
    (tmp_path / "NEW_IMAGES").symlink_to(tiny_folder / "val" / "images")
    torch.save(pytorch_unet_checkpoint(2), tmp_path / "CARVANA.pth")
    return tmp_path


def quick(command: str) -> str:
    """A documented command with few steps and a small network."""
    command = re.sub(r"\s#.*| --max-minutes \d+", "", command)
    command = re.sub(r"^python3 bootstrap\.py (?=\w+\.py)", "python ", command).removeprefix("python3 bootstrap.py ")
    for part, flags in SMALL.items():
        command += f" {flags}" if part in command and "--init-from" not in command else ""
    if "--encoder lite0" in command:  # it has a depth of its own
        command = command.replace(" --depth 2", "")
    return command + (" --max-steps 1" if "--init-from" in command else "")


def run(command: str, folder: Path) -> None:
    """Run a command as a user's shell would in `folder`, made quick."""
    command = quick(command)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"


def to_run(page: Path) -> list[str]:
    return [command for command in blocks(page) if "# needs " not in command]


def test_a_new_user_trains_on_own_images(checkout):
    commands = to_run(ROOT / "README.md")
    first = next(index for index, command in enumerate(commands) if "--dataset DATA" in command)
    for command in commands[first : first + 3]:  # check, train, predict
        words = shlex.split(quick(command))
        assert words[0] == "python"
        result = launch_forked(words[1:], None, {**os.environ}, checkout)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    assert len(list((checkout / "predicted").glob("cell_*.overlay.png"))) == 5


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if to_run(page)], ids=lambda page: page.name)
def test_every_command_that_needs_nothing_special_runs(page, checkout):
    for command in to_run(page):
        run(command, checkout)


@pytest.mark.slow
def test_the_python_of_the_pages_predicts_and_trains(checkout):
    run(next(command for command in to_run(ROOT / "README.md") if "--output-dir runs/cells" in command), checkout)
    (checkout / "cell.png").symlink_to(next((checkout / "NEW_IMAGES").iterdir()))
    for page in ("README.md", "docs/python.md"):
        for code in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE):
            quick_code = code.replace("range(20)", "range(1)")
            subprocess.run([sys.executable, "-c", quick_code], cwd=checkout, check=True, timeout=60)
    run("python predict.py --model runs/mine --input NEW_IMAGES --output masks", checkout)
