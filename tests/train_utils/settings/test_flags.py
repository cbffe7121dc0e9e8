"""The flags of train.py: each has a test of what it does, marked by its name, and says what it takes.

What people type by habit ends in one line that says what to type here.
Modules: train_utils/settings/train_settings.py, train_utils/settings/flags.py, runtime/cli.py.
"""

import argparse
import ast
from pathlib import Path
from unittest import mock

import pytest
from support.in_process import parsed

from train_utils.settings import flags as flags_of_train


def all_actions() -> list[argparse.Action]:
    """The flags of a run as argparse has them."""
    actions: list[argparse.Action] = []
    others = {"--help", "--version"}

    def list_actions(parser: argparse.ArgumentParser, *_: object) -> argparse.Namespace:
        actions.extend(action for action in parser._actions if not others & set(action.option_strings))
        raise SystemExit

    with mock.patch.object(flags_of_train.cli.Arguments, "parse_args", list_actions), pytest.raises(SystemExit):
        flags_of_train.parse_args("")
    return actions


def marked_flags(folder: Path) -> list[str]:
    """The flags that the marks of tests in a folder name."""
    names: list[str] = []
    for file in folder.glob("test_*_flags.py"):
        for function in ast.parse(file.read_text(encoding="utf-8")).body:
            for mark in getattr(function, "decorator_list", ()):
                if ast.unparse(mark).startswith("pytest.mark.flags("):
                    names += [argument.value for argument in mark.args]
    return names


def test_every_flag_has_a_test():
    flags = [flag for action in all_actions() for flag in action.option_strings]
    assert set(marked_flags(Path(__file__).parents[2] / "scripts")) == set(flags)


def test_every_flag_says_what_it_takes():
    actions = all_actions()
    assert [action.dest for action in actions if not action.help] == []
    unnamed = [action.dest for action in actions if action.nargs != 0 and not (action.metavar or action.choices)]
    assert unnamed == ["seed", "tracker"]  # which say it themselves


def test_the_defaults_of_the_flags_are_these():
    settings = vars(parsed("--dataset", "shapes"))
    defaults = {name: value for name, value in settings.items() if value is not None and value is not False}
    assert defaults == {
        "dataset": "shapes",
        "val_fraction": 0.1,
        "on_bad_sample": "error",
        "learning_rate": 0.001,
        "weight_decay": 0.01,
        "schedule": "cosine",
        "max_grad_norm": 1.0,
        "ema_decay": 0.0,
        "loss": "ce+logdice",
        "deep_supervision": True,
        "micro_batch_size": "auto",
        "sync_batchnorm": "auto",
        "ddp_comm_hook": "none",
        "processes_per_volume": 1,
        "plan": "auto",
        "keep_checkpoints": 2,
        "log_every": 10,
        "trace_steps": 0,
        "tracker": "tensorboard",
        "seed": 0,
    }


def test_flags_without_a_plan_are_those_of_the_original():
    settings = vars(parsed("--dataset", "shapes", "--plan", "none"))
    expected = {"scale": 1.0, "batch_size": 4, "epochs": 10, "augment": "basic", "eval_every": 0}
    expected |= dict.fromkeys(("class_weights", "encoder", "base_channels", "crop_size"))
    assert {name: settings[name] for name in expected} == expected


@pytest.mark.parametrize(("flags", "weights"), [((), "pretrained"), (("--encoder-weights", "random"), "random")])
def test_an_encoder_is_pretrained_unless_its_weights_are_asked_to_be_random(flags, weights):
    assert parsed("--dataset", "shapes", "--encoder", "lite0", *flags).encoder_weights == weights
    assert parsed("--dataset", "shapes", "--encoder", "none").encoder_weights is None
    assert parsed("--dataset", "shapes", "--encoder", "none").encoder_source is None


MISTAKES = {
    "--lr 0.001": "did you mean --learning-rate?",
    "--learning-rat=3": "unknown argument --learning-rat=3; did you mean --learning-rate?",
    "--gpus 2": "accelerate launch --multi_gpu --num_processes N for N GPUs",
    "--amp": "accelerate launch --mixed_precision fp16",
    "--pretrained": "--encoder lite0 is a pretrained encoder, --init-from a model",
    "--model unet": "the network is a U-Net: --encoder, --base-channels and --depth",
    "--mixed_precision bf16": "before the script, as in accelerate launch --mixed_precision",
    "--compile": "accelerate launch --dynamo_backend inductor",
    "--epoch 5": "did you mean --epochs?",
    "--batch_size 4": "did you mean --batch-size?",
    "--imgsz 640": "did you mean --image-size H W, --scale FACTOR or --crop-size H W?",
    "--image-size 256": "expected 2 arguments; give --image-size H W",
    "--image-size 3,40 1": "give --image-size H W",
    "--num-classes 3": "it is found in the data",
    "--weights yolo.pt": "--init-from MODEL starts from a model",
    "--optimizer adam": "'adam' is not one of adamw, sgd, muon",
    "--crop-size 256": "give H W, or D H W for volumes",
    "--epochs 1.5": "'1.5' is not a whole number",
    "--val-fraction 20": "'20' is not a number above 0 and below 1",
    "--fold 6/5": "is not K/N, such as 2/5",
    "--resume": "expected one argument; give --resume auto|CHECKPOINT",
    "--resume auto": "--resume auto needs --output-dir",
    "--name run1": "did you mean --output-dir runs/NAME?",
    "--config a.yaml": "settings are flags; --like RUN.json repeats a recorded run",
    "--crop-size 512x384": "give --crop-size SIDE [SIDE ...]",
    "\u2013-epochs 5": "did you mean --epochs?",
    "--wandb": "did you mean --tracker wandb?",
    "--class-weights balanced": "'balanced' is not a number above 0, or auto or none",
    "--tta": "predict.py has this flag",
    "--frobnicate 3": "unknown argument --frobnicate; see train.py --help",
    "E": "E and --dataset D both name a data set",
    "D masks": "unknown argument masks; did you mean --dataset DATA",
    "--batch-size 0": "'0' is not a whole number of at least 1",
    "--max-steps 10000000000": "'10000000000' is not a whole number of at least 1, at most 10^9",
    "--scale 1e9": "'1e9' is not a number above 0, at most 1000",
    "--task boxes": "'boxes' is not one of",
    "--norm layer": "'layer' is not one of batch, group, instance",
    "--image-size 8 8 --scale 0.5": "--image-size and --scale both set the size",
    "--max-minutes 3 --max-steps 4": "--max-minutes and --max-steps both say how long the run is",
    "--regions a=1 --task classes": "--regions is for --task regions, and --task is classes",
    "--crop-size 8 8 8 8": "--crop-size has 4 sides; give H W, or D H W for volumes",
}


@pytest.mark.parametrize(("typed", "line"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_a_one_line_error_that_mends_it(typed, line, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed("--dataset", "D", *typed.split())
    assert ended.value.code == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("train.py: error: ")
    assert line in message


def test_the_folder_may_stand_without_its_flag(capsys):
    assert parsed("DATA").dataset == parsed("--dataset", "DATA").dataset == "DATA"
    assert parsed("--epochs", "3", "DATA", "--scale", "1").dataset == "DATA"
    assert "generated shapes" not in capsys.readouterr().out


def test_a_run_without_data_says_first_that_it_trains_on_generated_shapes(capsys):
    assert parsed().dataset == "shapes"
    assert capsys.readouterr().out.startswith("no --dataset: this run trains on generated shapes")
    parsed("--dataset", "shapes")
    assert capsys.readouterr().out == ""


def test_a_checkpoint_to_resume_from_may_lie_below_the_home_folder():
    assert parsed("--resume=~/run/checkpoints/step-1").resume == str(Path.home() / "run/checkpoints/step-1")
    assert parsed("--resume", "auto", "--output-dir", "run").resume == "auto"
