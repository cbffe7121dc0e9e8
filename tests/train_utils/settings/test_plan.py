"""The plan: what the flags leave open follows from the data, is printed, recorded, and gives way to what is known.

Modules: train_utils/settings/plan.py, train_utils/settings/train_settings.py.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.data_sets import load_info
from support.folders import write_folder
from support.in_process import parsed, run_train
from support.points import write_dots
from support.splits import unread_info, unread_split
from support.volumes import write_msd

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.sources.records import select
from runtime.errors import SettingsError
from runtime.settings import as_flags
from train_utils.settings import plan
from train_utils.settings.plan import check_axes, check_scale, detail_kept, patch_size, plan_run, run_length
from train_utils.settings.train_settings import UNPLANNED
from unet.config import Preprocess, UNetConfig

FLAGS = ["--depth", "2", "--norm", "group", "--num-workers", "0", "--tracker", "none", "--max-steps", "2"]


def write_pairs(folder: Path, count: int, size: tuple[int, int], *, thin: bool = False) -> Path:
    """Grey images with one line across, 2 pixels thick where `thin`, else a third of the height."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    height = size[0]
    for index in range(count):
        mask = np.zeros(size, np.uint8)
        top = (7 * index + 5) % (height // 2)
        mask[top : top + (2 if thin else height // 3)] = 255
        Image.fromarray(mask // 2 + 40).save(folder / "images" / f"{index}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{index}.png")
    return folder


def planned(info: DatasetInfo, *flags: str) -> dict:
    """What is chosen beside these flags."""
    settings = parsed(*flags)
    chosen = vars(plan_run(info, settings))
    return {name: chosen[name] for name in UNPLANNED if getattr(settings, name) is None}


def sized(info: DatasetInfo, images: int, size: tuple[int, int]) -> DatasetInfo:
    """The data set with so many training images, all of this size."""
    records = select(info.train.records, np.arange(images) % len(info.train.records))
    return replace(info, train=Split(records, np.full((images, 2), size)))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> DatasetInfo:
    """Ten small images, of which the plan of others can be made."""
    return load_info(write_pairs(tmp_path_factory.mktemp("few"), 10, (32, 40)))


def test_large_images_get_smaller_until_they_suit_the_time_there_is(tmp_path):
    info = load_info(write_pairs(tmp_path, 10, (360, 480)))
    assert planned(info)["scale"] == 1.0
    assert planned(info, "--max-minutes", "10")["scale"] == 0.33
    assert planned(info, "--max-minutes", "30")["scale"] == 0.5
    assert planned(info, "--max-minutes", "10")["crop_size"] is None
    assert planned(info, "--max-minutes", "10")["optimizer"] == "adamw"


def test_images_whose_masks_would_lose_detail_are_cropped_instead(tmp_path):
    info = load_info(write_pairs(tmp_path, 10, (384, 512), thin=True))
    assert detail_kept(info, 0.25) < 0.9
    settings = planned(info, "--max-minutes", "10")
    assert settings["scale"] * 2 > 1.0
    height, width = settings["crop_size"]
    assert height % 32 == width % 32 == 0
    assert 0.5 * 192 * 256 < height * width <= 192 * 256


@pytest.mark.parametrize(
    ("size", "scale"),
    [((128, 160), 1.0), ((480, 640), 0.25), ((2400, 1935), 0.06)],
)
def test_images_with_points_are_resized_and_never_cropped(tmp_path, size, scale):
    write_dots(tmp_path, 4, seed=0)
    info = sized(load_info(tmp_path), 100, size)
    info.train.sizes[4] = (9000, 9000)  # the usual image decides
    settings = planned(info, "--max-minutes", "10")
    assert settings["scale"] == scale
    assert settings["crop_size"] is None
    assert settings["optimizer"] == "muon"


@pytest.mark.parametrize(
    ("flags", "detail", "size"),
    [
        (["--max-minutes", "14.9"], 0.9, (128, 160)),
        (["--max-minutes", "59", "--encoder", "resnet"], 0.9, (384, 512)),
        (["--max-minutes", "59", "--encoder", "resnet"], 0.95, (256, 320)),
        (["--max-minutes", "15"], 0.9, (192, 256)),
        ([], 0.9, (512, 512)),
    ],
    ids=["very short", "frozen encoder", "frozen encoder, smooth masks", "short", "no limit"],
)
def test_images_are_resized_to_the_size_that_the_length_of_the_run_allows(few, monkeypatch, flags, detail, size):
    monkeypatch.setattr(plan, "detail_kept", lambda info, scale: detail)
    height, width = size
    whole = {1: 1.0, 2: 0.5, 4: 0.25}
    one_row_more = {1: 0.75, 2: 0.33}
    for times, scale in whole.items():
        assert planned(sized(few, 10, (times * height, times * width)), *flags)["scale"] == scale
    for times, scale in one_row_more.items():
        assert planned(sized(few, 10, (times * height + 1, times * width)), *flags)["scale"] == scale


@pytest.mark.parametrize(
    ("minutes", "pixels", "crop"),
    [("14.9", 192 * 256, (192, 256)), ("60", 512 * 512, (192, 1344))],
)
def test_images_half_as_large_again_as_a_crop_are_cropped(few, minutes, pixels, crop):
    flags = ["--scale", "1", "--max-minutes", minutes]
    side = 3 * pixels // 2 // 192
    assert planned(sized(few, 10, (192, side)), *flags)["crop_size"] is None
    assert planned(sized(few, 10, (192, side + 1)), *flags)["crop_size"] == crop


@pytest.mark.parametrize(
    ("flags", "images", "width", "batch_size"),
    [("--max-minutes 59", 10, 16, 2), ("", 4999, 32, 4), ("", 5000, 64, 4)],
)
def test_short_runs_have_narrow_networks_and_small_batches(few, flags, images, width, batch_size):
    settings = planned(sized(few, images, (32, 40)), *flags.split())
    assert settings["base_channels"] == width
    assert settings["batch_size"] == batch_size


def test_long_narrow_images_are_cropped_along_their_length(tmp_path):
    info = load_info(write_pairs(tmp_path, 10, (64, 4096), thin=True))
    height, width = planned(info, "--max-minutes", "10")["crop_size"]
    assert height == 64
    assert 640 <= width <= 192 * 256 / 64
    assert planned(sized(info, 10, (4096, 64)), "--max-minutes", "10")["crop_size"] == (width, height)


def test_few_images_are_seen_often_enough(tmp_path):
    settings = planned(load_info(write_pairs(tmp_path, 20, (40, 50))), "--batch-size", "2")
    assert 2000 <= settings["epochs"] * 9 < 2009  # 18 for training
    assert "batch_size" not in settings


@pytest.mark.parametrize("flag", ["--max-steps", "--max-minutes"])
def test_a_run_of_steps_or_minutes_has_no_planned_epochs(few, flag):
    assert planned(few, flag, "9")["epochs"] is None


@pytest.mark.parametrize(
    ("pixels", "weights"),
    [
        ((4900, 4900, 200), None),
        ((4900, 4901, 199), ("auto",)),
        ((4900, 199, 4900, 1), ("auto",)),
        ((9999, 1), None),
        ((9950, 50, 0), ("auto",)),
    ],
)
def test_classes_are_weighted_where_one_of_several_has_less_than_two_percent(few, pixels, weights):
    info = replace(few, reader=replace(few.reader, class_pixels=pixels))
    assert planned(info)["class_weights"] == weights


@pytest.mark.parametrize(
    ("images", "flags", "augment"),
    [
        (101, "--max-minutes 3", "mirror"),
        (101, "--max-minutes 4", "basic"),
        (89, "--max-minutes 3", "basic"),
    ],
)
def test_a_short_run_on_many_images_only_mirrors_them(few, images, flags, augment):
    assert planned(sized(few, images, (16, 24)), *flags.split())["augment"] == augment


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> DatasetInfo:
    """Four images with points."""
    folder = tmp_path_factory.mktemp("points")
    write_dots(folder, 4, seed=0)
    return load_info(folder)


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> DatasetInfo:
    """Four volumes with masks."""
    return load_info(write_msd(tmp_path_factory.mktemp("volumes"), cases=4, shape=(40, 36, 50)))


@pytest.mark.parametrize(
    ("minutes", "augment", "crop_size"), [("14.9", "mirror", (40, 32, 32)), ("15", "basic", (56, 40, 40))]
)
def test_a_very_short_run_on_volumes_with_points_mirrors_small_patches(volumes, points, minutes, augment, crop_size):
    settings = planned(replace(volumes, reader=points.reader), "--max-minutes", minutes)
    assert settings["augment"] == augment
    assert settings["base_channels"] == 16
    assert settings["scale"] == 1.0
    assert settings["optimizer"] == "muon"
    assert tuple(settings["crop_size"]) == crop_size


@pytest.mark.parametrize(
    ("flags", "is_frozen"),
    [
        ("--max-minutes 59", True),
        ("--max-minutes 60", False),
        ("--max-minutes 59 --encoder-weights random", False),
    ],
)
def test_a_short_run_freezes_a_pretrained_encoder(few, flags, is_frozen):
    settings = planned(few, "--encoder", "resnet", *flags.split())
    assert settings["freeze_encoder"] is is_frozen
    assert f" {'--freeze-encoder' if is_frozen else '--no-freeze-encoder'} " in as_flags(settings)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> DatasetInfo:
    """Ten color images of 128 x 160."""
    return load_info(write_folder(tmp_path_factory.mktemp("photographs"), 10, seed=0, size=(128, 160)))


GREY = {"mean": (90.0,), "std": (40.0,)}


@pytest.mark.parametrize(
    ("flags", "task", "changes", "size", "encoder"),
    [
        ("", "classes", {}, (128, 160), "lite0"),
        ("", "classes", GREY, (128, 160), "lite0"),
        ("", "overlapping", {}, (128, 160), "lite0"),
        ("", "regions", {}, (128, 160), "lite0"),
        ("", "objects", {}, (128, 160), "lite0"),
        ("", "classes", {"mean": (90.0,) * 4, "std": (40.0,) * 4}, (128, 160), None),
        ("", "classes", {"pixel_types": ("uint16",)}, (128, 160), "lite0"),
        ("", "classes", {"pixel_types": ("uint16", "uint8")}, (128, 160), None),
        ("", "classes", {"pixel_types": ("float32",)}, (128, 160), None),
        ("", "classes", {}, (96, 160), "lite0"),
        ("", "classes", {}, (95, 160), None),
        ("--scale 1", "classes", {}, (127, 160), None),
        ("--scale 1", "classes", {}, (4097, 4096), None),  # it is read in windows
        ("--encoder none", "classes", {}, (128, 160), None),
        ("--base-channels 4", "classes", {}, (128, 160), None),
        ("--crop-size 96 160", "classes", {}, (128, 160), None),
        ("--dataset shapes", "classes", {}, (128, 160), None),
    ],
)
def test_photographs_get_the_pretrained_encoder_unless_the_task_or_a_flag_speaks_against_it(
    photographs, flags, task, changes, size, encoder
):
    info = sized(photographs, 10, size)
    normalization = info.normalization._replace(**changes)
    info = replace(info, config=replace(info.config, task=task), normalization=normalization)
    settings = planned(info, "--dataset", photographs.config.dataset, *flags.split())
    assert settings.get("encoder") == encoder
    assert settings["encoder_weights"] == (encoder and "pretrained")
    if "base_channels" in settings:
        assert (settings["base_channels"] is None) is (encoder is not None)


def test_images_with_points_are_larger_for_a_frozen_encoder_and_get_none_that_would_be_trained(points):
    settings = planned(sized(points, 10, (480, 640)), "--dataset", "data", "--max-minutes", "10")
    expected = {"encoder": "lite0", "freeze_encoder": True, "output_stride": 4, "scale": 0.5, "crop_size": None}
    assert {name: settings[name] for name in expected} == expected
    info = sized(points, 10, (480, 640))
    assert planned(info, "--dataset", "data")["encoder"] is None
    assert planned(info, "--dataset", "data", "--max-minutes", "10", "--no-freeze-encoder")["encoder"] is None


@pytest.mark.parametrize(("share", "encoder"), [(0.5, "lite0"), (0.51, None)])
def test_crowded_objects_get_no_pretrained_encoder(photographs, share, encoder):
    pixels = round(100 * (1 - share)), round(100 * share)
    reader = replace(photographs.reader, class_pixels=pixels)
    info = replace(photographs, config=replace(photographs.config, task="objects"), reader=reader)
    assert planned(info, "--dataset", "data").get("encoder") == encoder


@pytest.mark.parametrize(
    ("size", "flags", "scale"),
    [
        ((96, 98), "", 2),
        ((96, 2000), "", 2),
        ((128, 192), "--max-minutes 14", 2),
        ((128, 193), "--max-minutes 14", 1),
        ((128, 160), "--max-minutes 15 --no-freeze-encoder", 1),
        ((96, 98), "--encoder none", 1),
    ],
)
def test_small_images_are_enlarged_for_the_encoder(photographs, size, flags, scale):
    assert planned(sized(photographs, 10, size), "--dataset", "data", *flags.split())["scale"] == scale


@pytest.mark.parametrize(
    ("least_scale", "flags", "stride"),
    [
        (0.25, "", 2),
        (0.25, "--max-minutes 59", 4),
        (0.26, "--max-minutes 59", 2),
        (0.51, "--max-minutes 59", 1),
        (0.25, "--max-minutes 59 --image-size 144 192", 2),
        (0.25, "--encoder none", None),
        (0.25, "--encoder resnet", None),
        (0.25, "--encoder lite0 --max-minutes 59", 4),
    ],
)
def test_outputs_of_the_built_in_encoder_are_as_small_as_masks_keep_their_detail(
    photographs, monkeypatch, least_scale, flags, stride
):
    monkeypatch.setattr(plan, "detail_kept", lambda info, scale: float(scale >= least_scale))
    info = sized(photographs, 10, (192, 256))
    assert planned(info, "--dataset", "data", *flags.split())["output_stride"] == stride


def test_a_stream_gets_the_defaults():
    assert planned(unread_info(unread_split(3, (0, 0))), "--dataset", "data") == UNPLANNED


def test_a_plan_is_printed_recorded_and_equal_to_its_flags(tmp_path):
    write_folder(tmp_path / "data", 10, seed=0)
    run = run_train(tmp_path / "planned", "--dataset", tmp_path / "data", *FLAGS)
    line = next(line for line in run.output.splitlines() if line.startswith("plan: "))
    typed = run_train(tmp_path / "typed", "--dataset", tmp_path / "data", *FLAGS, "--plan", "none", *line.split()[1:])
    assert run.exit_code == typed.exit_code == 0
    flags, typed_flags = run.settings["flags"], typed.settings["flags"]
    assert {name: flags[name] for name in UNPLANNED} == {name: typed_flags[name] for name in UNPLANNED}
    assert flags["plan"] == "auto"
    assert all((run.weights(2)[name] == weight).all() for name, weight in typed.weights(2).items())


@pytest.mark.parametrize(("minutes", "optimizer"), [("59", "muon"), ("60", "adamw")])
def test_runs_on_volumes_below_an_hour_take_muon(volumes, minutes, optimizer):
    assert planned(volumes, "--max-minutes", minutes)["optimizer"] == optimizer


def test_rare_classes_of_volumes_are_not_weighted(volumes):
    info = replace(volumes, reader=replace(volumes.reader, class_pixels=(9800, 190, 10)))
    settings = planned(info, "--max-minutes", "14.9")
    assert settings["class_weights"] is None
    assert settings["batch_size"] == 2
    assert settings["augment"] == "basic"
    assert settings["scale"] == 1.0
    assert tuple(settings["crop_size"]) == (56, 40, 40)


@pytest.mark.parametrize(
    ("flags", "steps"),
    [("", 40), ("--scale 0.5", 52), ("--crop-size 32 32", 154)],
)
def test_evaluations_take_a_tenth_of_the_time_of_training(flags, steps):
    info = unread_info(unread_split(8, (64, 64)), unread_split(41, (64, 64)))
    settings = plan_run(info, parsed("--dataset", "data", *flags.split()))
    assert settings.eval_every == steps
    assert settings.checkpoint_every == steps


@pytest.mark.parametrize(
    ("size", "spacing", "minutes", "patch"),
    [
        ((100, 300, 300), (1, 1, 1), 60, (112, 160, 160)),
        ((20, 300, 300), (4, 1, 1), 60, (20, 320, 320)),
        ((40, 40, 40), (1, 1, 1), 60, (40, 40, 40)),
        ((40, 60, 400), (5, 1, 1), 59, (20, 64, 112)),
        ((20, 400, 400), (200, 0.5, 0.5), 10, (1, 384, 384)),
    ],
)
def test_patches_are_as_long_along_each_axis_as_there_is_room(size, spacing, minutes, patch):
    assert patch_size(unread_info(unread_split(5, size, spacing)), run_length(minutes)) == patch


IMAGES = unread_info(unread_split(3, (64, 64)))
VOLUMES = unread_info(unread_split(3, (64, 64, 64)))


@pytest.mark.parametrize(
    ("info", "flags", "line"),
    [
        (IMAGES, "--crop-size 4 4 4", "--crop-size 4 4 4: data holds images, which take H W"),
        (VOLUMES, "--crop-size 8 8", "--crop-size 8 8: data holds volumes, which take D H W"),
        (IMAGES, "--normalization ct --init-from m", "--normalization: the model of --init-from keeps its own"),
    ],
)
def test_flags_that_do_not_suit_the_data_are_refused(info, flags, line):
    with pytest.raises(SettingsError, match=line):
        check_axes(info, parsed("--dataset", "data", *flags.split()))


@pytest.mark.parametrize(
    ("typed", "size", "is_refused"),
    [(0.1, (24, 40), True), (0.25, (16, 16), False), (None, (16, 16), False), (0.1, (3, 50), False)],
)
def test_a_scale_at_which_nothing_of_the_usual_image_is_left_is_refused(typed, size, is_refused):
    info = SimpleNamespace(train=SimpleNamespace(sizes=np.array([size] * 3)))
    config = UNetConfig(preprocess=Preprocess(scale=typed or 0.1))
    if is_refused:
        with pytest.raises(SettingsError, match=r"of 24 x 40 pixels as small as 2 x 4, .* give --scale 0\.17 or more"):
            check_scale(info, typed, config)
    else:
        check_scale(info, typed, config)
