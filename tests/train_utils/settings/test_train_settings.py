"""Values of the flags of train.py: defaults, the smallest and largest ones, and flags that do not go together."""

import pytest
from support.in_process import parsed


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


@pytest.mark.parametrize(
    ("flag", "taken", "refused"),
    [
        ("--epochs", "1", "0"),
        ("--max-minutes", "0.5", "0"),
        ("--scale", "2.5", "0"),
        ("--learning-rate", "1e-9", "0"),
        ("--weight-decay", "0", "-1"),
        ("--ema-decay", "0", "1"),
        ("--dropout", "0", "1"),
        ("--checkpoint-every", "0", "-1"),
        ("--processes-per-volume", "1", "0"),
        ("--seed", "4294967295", "4294967296"),
        ("--fold", "2/2", "1/1"),
        ("--dims", "3", "4"),
    ],
)
def test_a_flag_takes_its_smallest_or_largest_number_and_none_beyond(capsys, flag, taken, refused):
    name = flag.removeprefix("--").replace("-", "_")
    assert str(getattr(parsed("--dataset", "data", flag, taken), name)) in (taken, str(float(taken.split("/")[0])))
    with pytest.raises(SystemExit):
        parsed("--dataset", "data", flag, refused)
    assert f"argument {flag}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--image-size 8 8 --scale 0.5", "--image-size and --scale both set the size"),
        ("--max-minutes 3 --max-steps 4", "--max-minutes and --max-steps both say how long the run is"),
        ("--regions a=1 --task classes", "--regions is for --task regions, and --task is classes"),
        ("--crop-size 8 8 8 8", "--crop-size has 4 sides; give H W, or D H W for volumes"),
        ("other --dataset=data", "other and --dataset data both name a data set"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(capsys, flags, line):
    with pytest.raises(SystemExit):
        parsed(*flags.split())
    assert line in capsys.readouterr().err
