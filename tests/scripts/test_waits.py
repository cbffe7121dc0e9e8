"""The scripts on a pretend accelerator: tensors lie where they should, numbers are read late, the host hardly waits."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.folders import write_folder
from support.launches import PROGRAMS, launch
from support.points import write_dots

SMALL = ["--base-channels", "2", "--depth", "1", "--batch-size", "4", "--num-workers", "0", "--tracker", "none"]
SMALL += ["--plan", "none", "--learning-rate", "0.01"]
RARELY = ["--eval-every", "99", "--checkpoint-every", "99", "--log-every", "99"]
TRAININGS = {
    "default": "",
    "points": "--dataset {points} --augment strong --depth 3 --batch-size 2 --optimizer muon --ema-decay 0.9",
}
PREDICTIONS = {
    "in turned tiles, by two models": "--tile-size 16 --overlap 4 --tta --ensemble {model}",
    "scored, with probabilities": "--probabilities --overlay --truth {truth}",
    "read points": "--model {points_model}",
}
STEPS, IMAGES = (1, 3), (1, 3)
MICRO_BATCHES = 4  # of a step
EVALUATIONS = (1, 3)


class Device:
    """Collects commands, runs them all in one process, and knows what each has waited for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: dict[tuple, list[str]] = {}

    def train(self, key: tuple, *flags: str) -> None:
        output = self.folder / "runs" / str(len(self.commands))
        self.commands[key] = ["train.py", "--dataset", str(self.folder / "data"), "--output-dir", str(output)]
        self.commands[key] += [*SMALL, *flags]

    def predict(self, key: tuple, images: list[Path], *flags: str, script: str = "predict.py") -> None:
        output = self.folder / "predictions" / str(len(self.commands))
        self.commands[key] = [script, "--model", str(self.folder / "model"), "--input", *map(str, images)]
        self.commands[key] += ["--output", str(output), *flags]

    def output(self, key: tuple) -> Path:
        """The output folder of a training."""
        command = self.commands[key]
        return Path(command[command.index("--output-dir") + 1])

    def run(self) -> None:
        words = [word for command in self.commands.values() for word in ("+", *command)]
        result = launch(PROGRAMS / "pretend_device.py", self.folder / "results.json", *words)
        assert result.returncode == 0, result.stderr
        results = json.loads((self.folder / "results.json").read_text())
        self.results = dict(zip(self.commands, results, strict=True))

    def waits(self, *key: object) -> dict[str, int]:
        result = self.results[key]
        assert not result["error"], (key, result["error"])
        return result["waits"]

    def more(self, few: tuple, many: tuple) -> dict[str, int]:
        """How much more often the second has waited than the first, by the place."""
        before, after = self.waits(*few), self.waits(*many)
        return {place: after[place] - before.get(place, 0) for place in after if after[place] != before.get(place, 0)}


@pytest.fixture(scope="session")  # a module's would be made again whenever a test of another one comes between
def device(tmp_path_factory) -> Device:
    """A device on which all commands have been run."""
    folder = tmp_path_factory.mktemp("device")
    write_folder(folder / "data" / "train", 8, seed=0, size=(24, 32))
    write_folder(folder / "data" / "val", 2, seed=1, size=(24, 32))
    write_dots(folder / "points", 8, seed=0)
    device = Device(folder)
    for name, flags in TRAININGS.items():
        filled = flags.format(points=folder / "points").split()
        for steps in STEPS:
            device.train((name, steps), *filled, *RARELY, "--max-steps", str(steps))
    few, many = map(str, STEPS)
    device.train(("accumulation",), *RARELY, "--max-steps", few, "--micro-batch-size", str(4 // MICRO_BATCHES))
    every = str(STEPS[1] // EVALUATIONS[1])
    device.train(("evaluations",), *RARELY, "--eval-every", every, "--max-steps", many)
    device.train(("begun",), *RARELY, "--max-steps", "1", "--ema-decay", "0.9")
    device.commands[("resumed",)] = [*device.commands[("begun",)], "--max-steps", "2", "--resume", "auto"]
    device.commands[("begun",)][0] = script(folder, FLOAT_NORM)
    (folder / "model").symlink_to(device.output(("default", STEPS[0])) / "model")

    photographs, rng = [], np.random.default_rng(0)
    for index in range(max(IMAGES)):
        photographs.append(folder / f"photograph_{index}.png")
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(photographs[-1])
    known = {
        "model": folder / "model",
        "truth": folder / "truth",
        "points_model": device.output(("points", STEPS[0])) / "model",
    }
    (folder / "truth").mkdir()
    for photograph in photographs:
        Image.fromarray(rng.choice([0, 255], (40, 48)).astype(np.uint8)).save(folder / "truth" / photograph.name)
    for name, flags in PREDICTIONS.items():
        for count in IMAGES:
            device.predict((name, count), photographs[:count], *flags.format(**known).split())
    for rows in (128, 256):  # read in windows, and written in strips of 64 rows
        tall = folder / f"tall_{rows}.png"
        Image.fromarray(rng.integers(0, 256, (rows, 40, 3), dtype=np.uint8)).save(tall)
        device.predict(("strips", rows), [tall], "--tile-size", "32", script=script(folder, IN_WINDOWS))
    device.train(("misplaced",), *RARELY, "--max-steps", "1")
    device.commands[("misplaced",)][0] = script(folder, MISPLACED)
    device.run()
    return device


def script(folder: Path, text: str) -> str:
    """A script that runs one of ours with something changed."""
    file = folder / f"changed_{len(list(folder.glob('changed_*')))}.py"
    file.write_text(text)
    return str(file)


IN_WINDOWS = """
import inference.predictor
from predict import main

inference.predictor.WINDOW_MEMORY = 0
"""
FLOAT_NORM = """
from unittest import mock

import train

clip_grad_norm = train.Accelerator.clip_grad_norm_


def clip_as_deepspeed(*arguments):
    return clip_grad_norm(*arguments).item()


def main():
    with mock.patch.object(train.Accelerator, "clip_grad_norm_", clip_as_deepspeed):
        train.main()
"""
MISPLACED = """
import train
from tasks.classes.loss import Classes

Classes.to = lambda task, device: task  # the classes' weights stay behind
main = train.main
"""


@pytest.mark.parametrize("name", TRAININGS)
def test_the_host_waits_at_most_once_in_an_optimizer_step(device, name):
    more = device.more((name, STEPS[0]), (name, STEPS[1]))
    assert 0 < sum(more.values()) <= STEPS[1] - STEPS[0], more  # none at all would be a count that does not work


def test_micro_batches_add_no_wait(device):
    assert not device.more(("default", STEPS[0]), ("accumulation",))


def test_the_host_waits_at_most_twice_in_an_evaluation(device):
    more = device.more(("default", STEPS[1]), ("evaluations",))
    saves = sum(count for place, count in more.items() if "device.py" in place and "scalar" in place)
    # evaluations read the results of steps too, which then need not be read later
    assert sum(more.values()) - saves <= 2 * (EVALUATIONS[1] - EVALUATIONS[0]), more
    assert max(more.values()) > 0, more
    assert saves <= EVALUATIONS[1] - EVALUATIONS[0]


def test_a_resumed_run_keeps_its_state_on_the_device(device):
    assert device.waits("resumed")


@pytest.mark.parametrize("name", PREDICTIONS)
def test_the_host_waits_at_most_once_for_a_predicted_image(device, name):
    more = device.more((name, IMAGES[0]), (name, IMAGES[1]))
    assert 0 < sum(more.values()) <= IMAGES[1] - IMAGES[0], more


def test_the_host_waits_at_most_once_for_a_band_of_a_large_image(device):
    more = device.more(("strips", 128), ("strips", 256))
    assert 0 < sum(more.values()) <= (256 - 128) // 64, more


def test_a_gradient_norm_that_is_a_number_is_put_on_the_device(device):
    """DeepSpeed's is."""
    assert device.waits("begun")


def test_a_misplaced_tensor_is_found(device):
    error = device.results[("misplaced",)]["error"]
    assert error == "RuntimeError: aten.mul.Tensor: tensors on pretend:0 and cpu"
