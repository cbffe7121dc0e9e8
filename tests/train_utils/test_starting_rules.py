"""What a run starts from and which flags it repeats, in words and numbers that are written out.

Modules: train_utils/settings/starting_point.py, train_utils/settings/encoder.py, train_utils/settings/like.py,
train_utils/settings/plan.py, train_utils/settings/record.py, train_utils/settings/train_settings.py.
"""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import load_info, write_folder
from in_process import parsed
from starting import start_from
from volumes import write_msd

from data_utils.loading.batch_sampler import BatchSplit
from data_utils.sources.records import ListRecords
from runtime.errors import ModelError, SettingsError
from tasks.classes import Classes
from train_utils.checkpoints.checkpoint_state import CheckpointState
from train_utils.checkpoints.find import FoundCheckpoint
from train_utils.microbatch import MemoryLimit
from train_utils.run_dir import OpenedRun
from train_utils.run_state import RunState
from train_utils.settings.encoder import load_encoder, read_license, read_normalization, with_channels
from train_utils.settings.plan import as_flags, check_axes, check_scale
from train_utils.settings.record import RunSettings, flags_as_json, resolve_settings
from train_utils.settings.starting_point import NetworkSettings, StartingPoint, copy_weights, starting_point
from train_utils.settings.train_settings import flag_of
from unet import UNet, UNetConfig
from unet.axes import NetworkAxes
from unet.config import Preprocess


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images"), 10, seed=0, size=(16, 16))


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


@pytest.mark.parametrize(
    ("flag", "taken", "refused"),
    [
        ("--epochs", "1", "0"),
        ("--max-steps", "1", "0"),
        ("--patience", "1", "0"),
        ("--max-minutes", "0.5", "0"),
        ("--scale", "2.5", "0"),
        ("--learning-rate", "1e-9", "0"),
        ("--encoder-lr-factor", "2", "0"),
        ("--weight-decay", "0", "-1"),
        ("--max-grad-norm", "0", "-1"),
        ("--ema-decay", "0", "1"),
        ("--dropout", "0", "1"),
        ("--val-fraction", "0.99", "1"),
        ("--warmup-steps", "0", "-1"),
        ("--eval-every", "0", "-1"),
        ("--checkpoint-every", "0", "-1"),
        ("--log-every", "0", "-1"),
        ("--trace-steps", "0", "-1"),
        ("--num-workers", "0", "-1"),
        ("--keep-checkpoints", "1", "0"),
        ("--base-channels", "1", "0"),
        ("--depth", "1", "0"),
        ("--batch-size", "1", "0"),
        ("--micro-batch-size", "1", "0"),
        ("--processes-per-volume", "1", "0"),
        ("--val-blocks", "1", "0"),
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
        ("--spacing 1 1", "argument --spacing: expected 3 arguments"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(capsys, flags, line):
    with pytest.raises(SystemExit):
        parsed(*flags.split())
    assert line in capsys.readouterr().err


def test_flags_that_say_the_same_twice_go_together():
    assert parsed("data", "--dataset", "data").dataset == "data"
    assert parsed("data", "--image-size", "8", "8", "--scale", "1").scale == 1
    for task in ((), ("--task", "overlapping"), ("--task", "regions")):
        assert parsed("data", "--regions", "a=1", *task).task == "regions"
    assert parsed("data", "--val-blocks").val_blocks == 0  # of a size that is chosen


def test_without_a_plan_the_flags_are_those_of_the_original():
    settings = parsed("--dataset", "shapes", "--plan", "none")
    assert (settings.scale, settings.batch_size, settings.epochs, settings.augment) == (1.0, 4, 10, "basic")
    assert (settings.eval_every, settings.checkpoint_every, settings.class_weights) == (0, 0, None)
    assert settings.encoder is None and settings.base_channels is None and settings.crop_size is None


@pytest.mark.parametrize(("flags", "weights"), [((), "pretrained"), (("--encoder-weights", "random"), "random")])
def test_an_encoder_is_pretrained_unless_its_weights_are_asked_to_be_random(flags, weights):
    assert parsed("--dataset", "shapes", "--encoder", "lite0", *flags).encoder_weights == weights
    assert parsed("--dataset", "shapes", "--encoder", "none").encoder_weights is None
    assert parsed("--dataset", "shapes", "--encoder", "none").encoder_source is None


def test_a_network_without_flags_is_the_original_and_one_with_an_encoder_is_narrow():
    plain = start_from(None, {}).architecture
    assert (plain.base_channels, plain.depth, plain.norm, plain.upsample) == (64, 4, "batch", "transpose")
    with_encoder = start_from(None, {"encoder": "lite0", "encoder_weights": "random"})
    assert with_encoder.architecture.base_channels == 16 and with_encoder.encoder.weights is None
    assert with_encoder.source_preprocess(3) is None
    assert start_from(None, {"depth": 2, "dropout": 0.5}).architecture.dropout == 0.5


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"encoder": "lite0", "depth": 9}, "--depth 9: lite0 has 5; leave the flag out, or start from another model"),
        (
            {"encoder": "lite0", "encoder_weights": "random", "freeze_encoder": True},
            "--freeze-encoder: the random weights of lite0 would never be trained",
        ),
        ({"dims": 3, "upsample": "bilinear_aligned"}, "--upsample bilinear_aligned works for images only"),
        (
            {"dims": 3, "kernels": ((3, 3, 3),) * 3, "strides": ((2, 2, 2),) * 2, "depth": 4},
            "--depth 4: patches of this size and spacing allow a depth of 2",
        ),
    ],
)
def test_flags_that_do_not_fit_the_network_are_refused(flags, line):
    with pytest.raises(ModelError) as caught:
        start_from(None, flags)
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("upsample", "flags", "is_refused"),
    [
        ("transpose", {"upsample": "bilinear"}, True),
        ("bilinear", {"upsample": "transpose"}, True),
        ("bilinear", {"upsample": "bilinear_aligned"}, False),
        ("bilinear", {"dropout": 0.5}, False),
        ("transpose", {"base_channels": 2, "depth": 1, "norm": "batch", "block": "plain"}, False),
        ("transpose", {"base_channels": 4}, True),
        ("transpose", {"depth": 2}, True),
        ("transpose", {"norm": "group"}, True),
        ("transpose", {"block": "residual"}, True),
    ],
)
def test_a_model_to_start_from_keeps_the_architecture_that_has_weights(upsample, flags, is_refused):
    model = UNet(UNetConfig(base_channels=2, depth=1, upsample=upsample))
    settings = NetworkSettings(init_from="m", **flags)
    if is_refused:
        ((name, value),) = flags.items()
        line = f"{flag_of(name)} {value}: m has {getattr(model.config, name)}; leave the flag out"
        with pytest.raises(ModelError, match=line):
            starting_point(settings, model=model)
    else:
        start = starting_point(settings, model=model)
        assert start.architecture == replace(model.config, **flags, preprocess=start.architecture.preprocess)
        assert (start.source, start.model, start.trained) == ("m", model, model.config)


def test_a_model_to_start_from_keeps_its_levels_and_takes_no_data_of_other_axes():
    volumes = {"dims": 3, "kernels": ((1, 3, 3), (3, 3, 3)), "strides": ((1, 2, 2),)}
    config = UNetConfig(base_channels=2, depth=1, **volumes)
    own = starting_point(NetworkSettings(init_from="m"), NetworkAxes(3), model=UNet(config))
    assert (own.architecture.kernels, own.architecture.strides) == (config.kernels, config.strides)
    with pytest.raises(ModelError, match=r"m: takes volumes, but the data are images; .* or give --dims 3"):
        starting_point(NetworkSettings(init_from="m"), NetworkAxes(2), model=UNet(config))
    with pytest.raises(ModelError, match="the checkpoint: takes volumes, but the data are images"):
        starting_point(NetworkSettings(), NetworkAxes(2), checkpoint=config)


def test_the_normalization_of_a_model_is_kept_for_as_many_channels():
    config = UNetConfig(in_channels=3, preprocess=Preprocess(mean=(1.0, 2.0, 3.0), std=(1.0,) * 3))
    start = StartingPoint(config, trained=config)
    assert start.source_preprocess(3) is config.preprocess and start.source_preprocess(1) is None


def test_the_built_in_encoder_sees_images_as_in_its_pretraining():
    encoder = load_encoder("lite0", pretrained=False)
    assert (encoder.mean, encoder.std, encoder.depth) == ((127.0,) * 3, (128.0,) * 3, 5)
    assert encoder.weights is None and encoder.config["num_channels"] == 3


def test_flags_of_an_encoder_are_refused_without_one():
    with pytest.raises(SettingsError, match=r"--encoder-lr-factor 0\.5: this network has no encoder"):
        start_from(None, {"encoder_lr_factor": 0.5})
    with pytest.raises(SettingsError, match="--freeze-encoder: this network has no encoder"):
        start_from(None, {"freeze_encoder": True})
    assert start_from(None, {"freeze_encoder": False}).freezes_encoder is False


def test_a_model_that_is_built_says_how_large_it_is(capsys):
    task = Classes(("a", "b"))
    network = start_from(None, {"base_channels": 2, "depth": 1}).build(1, task, Preprocess())
    count = sum(parameter.numel() for parameter in network.parameters())
    assert capsys.readouterr().out == f"model: U-Net, {count:,} parameters\n"
    assert network.config.num_classes == 2 and network.config.in_channels == 1
    frozen = start_from(None, {"encoder": "lite0", "encoder_weights": "random"})._replace(freezes_encoder=True)
    network = frozen.build(3, task, Preprocess(mean=(1.0,) * 3, std=(1.0,) * 3, pixel_types=("uint16",)))
    text = capsys.readouterr().out
    encoder = sum(parameter.numel() for parameter in network.encoder.parameters())
    assert text.startswith("model: U-Net with encoder ") and text.endswith(f", {encoder:,} of them frozen\n")
    assert network.config.preprocess.mean == (1.0,) * 3  # of 16 bits: by the data's own statistics


def test_weights_of_another_shape_start_at_random():
    torch.manual_seed(0)
    source = UNet(UNetConfig(3, 2, base_channels=2, depth=1))
    model = UNet(UNetConfig(1, 4, base_channels=2, depth=1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert copy_weights(source, model) == (
        "37 of 40 weights copied; random start for stem.conv1.weight (2 x 1 x 3 x 3 here, 2 x 3 x 3 x 3 there),"
        " head.conv.weight (4 x 2 x 1 x 1 here, 2 x 2 x 1 x 1 there), head.conv.bias (4 here, 2 there)"
    )
    unchanged = ("stem.conv1.weight", "head.conv.weight", "head.conv.bias")
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name] if name in unchanged else source.state_dict()[name])
    same = UNet(source.config)
    assert copy_weights(source, same) == "40 of 40 weights copied"
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in same.state_dict().items())


def test_images_are_normalized_as_an_encoders_folder_says(tmp_path):
    scaled = ([255 * value for value in (0.485, 0.456, 0.406)], [255 * value for value in (0.229, 0.224, 0.225)])
    for family, expected in (("resnet", scaled), ("bit", ([127.5] * 3, [127.5] * 3))):
        assert [*map(list, read_normalization(str(tmp_path), family))] == [*expected]
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"image_mean": [0.5, 0.25, 0.125], "image_std": [1, 2, 4]}))
    assert read_normalization(str(tmp_path), "bit") == ((127.5, 63.75, 31.875), (255, 510, 1020))
    file.write_text(json.dumps({"image_mean": [0.5, 0.25, 0.125], "do_normalize": False}))
    assert read_normalization(str(tmp_path), "resnet") == ((0, 0, 0), (255, 255, 255))
    file.write_text(json.dumps({"image_std": [0, 0, 0]}))
    with pytest.raises(ModelError, match=r"preprocessor_config\.json cannot be used"):
        read_normalization(str(tmp_path), "resnet")


def test_the_license_of_an_encoder_is_that_of_its_card(tmp_path):
    assert read_license(str(tmp_path)) is None
    for front, expected in (("license: mit", "mit"), ("license: [a, b]", None), ("tags: x", None), ("{", None)):
        (tmp_path / "README.md").write_text(f"---\n{front}\n---\n# Card\n")
        assert read_license(str(tmp_path)) == expected


def test_an_encoder_takes_other_numbers_of_channels_where_its_family_can():
    assert with_channels({"num_channels": 3, "depth": 4}, 5) == {"num_channels": 5, "depth": 4}
    config = {"num_channels": 3, "stem_channels": [3, 8, 16]}
    assert with_channels(config, 2) == {"num_channels": 2, "stem_channels": [2, 8, 16]}
    assert config["stem_channels"] == [3, 8, 16]
    with pytest.raises(ModelError, match="takes grey or RGB images, these have 5 channels"):
        with_channels({"_name_or_path": "x", "license": None}, 5)


def opened_run(folder: Path) -> OpenedRun:
    return OpenedRun(folder, FoundCheckpoint(None, None, []), MemoryLimit())


def plan_line(info, capsys, *flags: str) -> str:
    opened_run(Path()).planned(parsed("--dataset", "data", *flags), info)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("plan: ")]
    return line


def test_the_plan_that_is_printed_holds_what_it_decided(folder, capsys):
    info = load_info(folder)
    line = plan_line(info, capsys)
    assert line.startswith(
        "plan: --scale 1 --augment basic --base-channels 32 --block residual --batch-size 4 --optimizer adamw --epochs "
    )
    assert " --epochs " not in plan_line(info, capsys, "--max-steps", "3")
    assert " --epochs " not in plan_line(info, capsys, "--max-minutes", "3")
    assert " --scale " not in plan_line(info, capsys, "--scale", "0.5")
    settings = opened_run(folder).planned(parsed("--dataset", "data", "--plan", "none"), info)
    assert (settings.batch_size, settings.base_channels, settings.crop_size) == (4, None, None)


def test_volumes_without_a_plan_have_patches(tmp_path, capsys):
    info = load_info(write_msd(tmp_path, cases=3, shape=(6, 7, 8)))
    settings = opened_run(tmp_path).planned(parsed("--dataset", "data", "--plan", "none"), info)
    sides = " ".join(map(str, settings.crop_size))
    assert len(settings.crop_size) == 3 and f"patches: --crop-size {sides}\n" in capsys.readouterr().out
    own = opened_run(tmp_path).planned(
        parsed("--dataset", "data", "--plan", "none", "--crop-size", "4", "4", "4"), info
    )
    assert list(own.crop_size) == [4, 4, 4] and "patches" not in capsys.readouterr().out


def test_crops_must_have_the_axes_of_the_data(folder):
    info = load_info(folder)
    with pytest.raises(SettingsError, match="--crop-size 4 4 4: data holds images, which take H W"):
        check_axes(info, parsed("--dataset", "data", "--crop-size", "4", "4", "4"))
    check_axes(info, parsed("--dataset", "data", "--crop-size", "4", "4"))
    records = ListRecords([])
    records.dims = 3
    volumes = replace(info, train=replace(info.train, records=records))
    with pytest.raises(SettingsError, match="--crop-size 4 4: data holds volumes, which take D H W"):
        check_axes(volumes, parsed("--dataset", "data", "--crop-size", "4", "4"))
    with pytest.raises(SettingsError, match="--encoder lite0: takes images, but data holds volumes"):
        check_axes(volumes, parsed("--dataset", "data", "--encoder", "lite0"))
    with pytest.raises(SettingsError, match="--normalization: the model of --init-from keeps its own"):
        check_axes(info, parsed("--dataset", "data", "--init-from", "x", "--normalization", "ct"))


def test_values_are_told_as_they_are_typed():
    values = {
        "freeze_encoder": False,
        "deep_supervision": True,
        "scale": 0.33,
        "class_weights": ("auto",),
        "depth": None,
    }
    assert as_flags(values) == "--no-freeze-encoder --deep-supervision --scale 0.33 --class-weights auto"
    assert (
        as_flags({"class_weights": (1.0, 2.5), "learning_rate": 1e-5}) == "--class-weights 1 2.5 --learning-rate 1e-05"
    )


def test_what_gives_a_state_its_meaning_is_recorded(folder):
    info = load_info(folder)
    args = parsed("--dataset", str(folder), "--plan", "none", "--seed", "7", "--no-deep-supervision")
    settings = resolve_settings(
        args,
        info,
        UNetConfig(base_channels=2, depth=1),
        output_dir=Path("out"),
        profile={"processes": 2},
        batch_split=BatchSplit(4, 2, 1, 2),
        total_steps=70,
        num_workers=3,
    )
    identity = dict(settings.identity)
    assert identity.pop("content of the data set") and identity.pop("data set").startswith("9 + 1 images (")
    assert identity == {
        "task": "classes",
        "classes": ["0", "255"],
        "in_channels": 3,
        "base_channels": 2,
        "depth": 1,
        "norm": "batch",
        "block": "plain",
        "upsample": "transpose",
        "dropout": 0.0,
        "dims": 2,
        "kernels": [],
        "strides": [],
        "encoder": None,
        "freeze_encoder": False,
        "deep supervision": False,
        "batch size": 4,
        "seed": 7,
        "optimizer": "adamw",
    }
    assert (settings.total_steps, settings.micro_batch_size, settings.accumulation, settings.num_workers) == (
        70,
        1,
        2,
        3,
    )
    assert settings.flags["output_dir"] == "out" and settings.flags["base_channels"] == 2
    assert settings.profile == {"processes": 2} and settings.credentials_left_out == []


def test_an_encoder_is_recorded_by_its_name_wherever_it_lies(folder):
    args = parsed("--dataset", str(folder), "--plan", "none", "--encoder", "some/where/resnet", "--freeze-encoder")
    encoder = {"_name_or_path": "resnet", "license": "mit", "num_channels": 3}
    settings = resolve_settings(
        args,
        load_info(folder),
        UNetConfig(base_channels=2, depth=1, encoder=encoder),
        output_dir=Path("out"),
        profile={"processes": 1},
        batch_split=BatchSplit(4, 1, 4, 1),
        total_steps=70,
        num_workers=0,
    )
    assert settings.encoder == "resnet (mit)" and settings.identity["encoder"] == "resnet"
    assert settings.identity["freeze_encoder"] is True and settings.identity["deep supervision"] is True
    assert settings.flags["draft"] is True  # as the model has it, whatever the flag says


def test_a_scale_at_which_nothing_is_left_to_see_is_refused_with_the_size_and_the_flag(folder):
    info = load_info(folder)  # 16 x 16

    def check(typed: float | None, used: float) -> None:
        config = UNetConfig(base_channels=2, depth=3, preprocess=Preprocess(scale=used))
        check_scale(info, typed, config)

    check(0.25, 0.25)  # 4 x 4 pixels
    check(None, 0.1)  # the plan's own
    line = "--scale 0.2: makes images of 16 x 16 pixels as small as 3 x 3, where nothing is left to see; give"
    with pytest.raises(SettingsError, match=f"{line} --scale 0.5 or more"):
        check(0.2, 0.2)
    low = SimpleNamespace(train=SimpleNamespace(sizes=np.array([[6, 50]])))
    with pytest.raises(
        SettingsError, match=r"as small as 3 x 25, .* give --scale 1 or more"
    ):  # never more than there is
        check_scale(low, 0.5, UNetConfig(depth=4, preprocess=Preprocess(scale=0.5)))
    tiny = SimpleNamespace(train=SimpleNamespace(sizes=np.array([[3, 50]])))
    check_scale(tiny, 0.5, UNetConfig(preprocess=Preprocess(scale=0.5)))  # it is so small from the start
    info.train.sizes[:] = 0  # a stream
    check(0.01, 0.01)


@pytest.fixture
def like(tmp_path: Path):
    """The settings of a run that repeats one with these flags."""

    def repeated(recorded: tuple[str, ...], *flags: str):
        settings = flags_as_json(parsed("--dataset", "data", "--plan", "none", *recorded))
        (tmp_path / "run.json").write_text(json.dumps({"flags": settings, "total_steps": 70}))
        return parsed("--like", str(tmp_path), *flags)

    return repeated


def test_a_repeated_run_has_the_flags_that_were_switched_on_and_off(like):
    recorded = ("--no-deep-supervision", "--cache", "--encoder", "lite0", "--freeze-encoder", "--loss", "ce")
    args = like((*recorded, "--class-weights", "1", "2", "--crop-size", "32", "48"))
    assert (args.deep_supervision, args.cache, args.freeze_encoder, args.loss) == (False, True, True, "ce")
    assert (args.encoder, args.class_weights, list(args.crop_size)) == ("lite0", [1.0, 2.0], [32, 48])
    assert like(recorded, "--deep-supervision").deep_supervision is True


def test_another_encoder_or_model_brings_its_own_architecture(like):
    recorded = ("--base-channels", "4", "--depth", "2", "--norm", "group", "--loss", "ce")
    for flags in (("--encoder", "lite0"), ("--init-from", "x")):
        args = like(recorded, *flags)
        assert (args.base_channels, args.depth, args.norm, args.loss) == (None, None, None, "ce")
    args = like(("--encoder", "lite0", "--freeze-encoder"), "--init-from", "x")
    assert (args.encoder, args.freeze_encoder, args.init_from) == (None, None, "x")


def test_what_a_repeated_run_does_otherwise_is_said(like, capsys):
    like(("--loss", "ce"), "--seed", "3")
    assert ", but seed 3 (was 0)\n" in capsys.readouterr().out
    like(("--loss", "ce"), "--output-dir", "elsewhere")
    assert ", without a change\n" in capsys.readouterr().out


def test_tiffs_are_read_as_the_run_or_the_model_before_read_them(tmp_path):
    """One of a version before does not say that it reads places: it reads pictures."""

    def reads_places(config: UNetConfig | None, *flags: str) -> bool:
        state = None if config is None else CheckpointState(RunSettings(), config, RunState(), None, None)
        args = parsed("--dataset", "data", *flags)
        start = OpenedRun(tmp_path, FoundCheckpoint(None, state, []), MemoryLimit(), args.init_from)
        return start.reads_places(args)

    old = UNetConfig(base_channels=2, depth=1)
    new = UNetConfig(base_channels=2, depth=1, preprocess=Preprocess(place=True))
    assert (reads_places(None), reads_places(new), reads_places(old)) == (True, True, False)
    assert (reads_places(None, "--no-place"), reads_places(old, "--place")) == (False, True)
    for flags in (("--val-blocks",), ("--bands", "1"), ("--label-column", "kind")):  # which ask for places
        assert reads_places(old, *flags)
    for config, expected in ((old, False), (new, True)):
        UNet(config).save_pretrained(tmp_path / "model")
        assert reads_places(None, "--init-from", str(tmp_path / "model")) == expected
    for flags, expected in (({"epochs": 3}, False), ({"epochs": 3, "place": True}, True)):
        (tmp_path / "run.json").write_text(json.dumps({"flags": {"dataset": "data", **flags}}))
        assert parsed("--like", str(tmp_path / "run.json")).place is expected
