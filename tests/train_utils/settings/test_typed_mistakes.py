"""What people type by habit ends in one line that says what to type here.

Modules: train_utils/settings/flags.py, runtime/cli.py.
"""

import sys

import pytest
from support.in_process import parsed, process_state_kept

from inference.predict_settings import parse_args as parse_predict_args

MISTAKES = {
    "--lr 0.001": "did you mean --learning-rate?",
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
}


@pytest.mark.parametrize(("typed", "line"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_a_one_line_error_that_mends_it(typed, line, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed("--dataset", "D", *typed.split())
    assert ended.value.code == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("train.py: error: ")
    assert line in message


PREDICT_MISTAKES = dict.fromkeys(("--source y", "--images y"), "did you mean --input FILES?")
PREDICT_MISTAKES |= dict.fromkeys(("--threshold 0.5", "--conf 0.5"), "--probabilities writes how probable each one is")


@pytest.mark.parametrize(("typed", "line"), PREDICT_MISTAKES.items(), ids=PREDICT_MISTAKES)
def test_a_mistake_with_predict_is_a_one_line_error_too(typed, line, capsys):
    with process_state_kept(), pytest.raises(SystemExit):
        sys.argv = ["predict.py", "--model", "m", "--output", "o", *typed.split()]
        parse_predict_args("")
    (message,) = capsys.readouterr().err.splitlines()
    assert message.endswith(line)


def test_the_folder_may_stand_without_its_flag(capsys):
    assert parsed("DATA").dataset == parsed("--dataset", "DATA").dataset == "DATA"
    assert parsed("--epochs", "3", "DATA", "--scale", "1").dataset == "DATA"
    assert "generated shapes" not in capsys.readouterr().out


def test_a_run_without_data_says_first_that_it_trains_on_generated_shapes(capsys):
    assert parsed().dataset == "shapes"
    assert capsys.readouterr().out.startswith("no --dataset: this run trains on generated shapes")
    parsed("--dataset", "shapes")
    assert capsys.readouterr().out == ""
