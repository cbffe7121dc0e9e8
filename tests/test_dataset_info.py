"""What is known of a data set before the first step, and what becomes of files that cannot be used."""

import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tifffile
from conftest import TINY, launch, write_folder
from data_utils.large import Crops
from filelock import FileLock
from PIL import Image

from data_utils import cache, inspection
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.analysis.validate import check_data
from data_utils.image_io.reader import read_image, read_mask
from data_utils.image_io.regions import open_regions
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.crop import crop_window
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset
from data_utils.loading.decoded_cache import decode_once
from data_utils.loading.transforms import input_window
from runtime.errors import DataError, ImageError
from unet import Preprocess

OPTIONS = dict.fromkeys(
    ("train_split", "val_split", "mask_suffix", "image_column", "mask_column", "dataset_config", "val_group")
) | {"seed": 0, "val_fraction": 0.1, "allow_unpaired": False, "classes": None, "ignore_index": None}
ERRORS = (DataError, ImageError)
CLASSES = "0=background,255=cell"


def progress(items, total, what):
    return items


def loaded(folder: Path, **options):
    return load_dataset_info(str(folder), read_image, progress, errors=ERRORS, **OPTIONS | options)


def checked(folder: Path, **options) -> tuple[str, int]:
    return check_data(str(folder), read_image, progress, errors=ERRORS, **OPTIONS | options)


def break_files(folder: Path) -> list[str]:
    """One of each bad file in a folder of 20 or more; the names of those whose pair cannot be used, in order."""
    images, masks = ([folder / kind / f"cell_{i:02}.png" for i in range(10)] for kind in ("images", "masks"))
    images[0].write_bytes(b"")
    images[1].write_bytes(images[1].read_bytes()[: images[1].stat().st_size // 2])
    images[2].write_text("no picture")
    masks[3].write_bytes(b"")
    masks[4].write_bytes(masks[4].read_bytes()[:-40])
    Image.new("L", (10, 12)).save(masks[5])
    stray = np.array(Image.open(masks[6]))
    stray[0, 0] = 37
    Image.fromarray(stray).save(masks[6])
    np.save(images[7].with_suffix(".npy"), np.zeros((40, 56, 5), np.uint8))
    images[7].unlink()
    images[8].unlink()
    images[8].symlink_to("nowhere")
    return [f"cell_{i:02}" for i in range(9)]


@pytest.fixture
def broken(tmp_path) -> Path:
    folder = write_folder(tmp_path / "train", 24, seed=0)
    write_folder(tmp_path / "val", 3, seed=1)
    break_files(folder)
    return tmp_path


@pytest.fixture
def looks(monkeypatch) -> list[str]:
    """Names of the records that have been looked at, in any thread."""
    seen, inspect = [], inspection.inspect
    monkeypatch.setattr(inspection, "inspect", lambda record: seen.append(record["name"]) or inspect(record))
    return seen


def same(a, b) -> bool:
    arrays = np.array_equal(a.train_sizes, b.train_sizes) and np.array_equal(a.val_sizes, b.val_sizes)
    return arrays and (a.classes, a.class_pixels, a.mean, a.std) == (b.classes, b.class_pixels, b.mean, b.std)


def test_a_second_start_looks_at_no_file_and_knows_the_same(tmp_path, looks):
    folder = write_folder(tmp_path / "data", 20, seed=0)
    first = loaded(folder)
    assert sorted(looks) == sorted(path.name for path in (folder / "images").iterdir())  # each once
    looks.clear()
    assert same(loaded(folder), first) and looks == []
    assert first.class_pixels == [
        sum(int((np.array(Image.open(path)) == value).sum()) for path in (folder / "masks").iterdir())
        for value in (0, 255)
    ]
    assert all(path.parent.name in ("images", "masks") for path in folder.rglob("*.*"))


@pytest.mark.parametrize("change", ["mask", "added", "renamed", "image", "time"])
def test_a_changed_folder_is_looked_at_again(tmp_path, looks, change):
    folder = write_folder(tmp_path / "data", 20, seed=0)
    loaded(folder)
    looks.clear()
    mask, image = folder / "masks" / "cell_03.png", folder / "images" / "cell_03.png"
    if change == "mask":
        Image.fromarray(np.full((40, 56), 9, np.uint8)).save(mask)
    elif change == "added":
        for file in (mask, image):
            file.with_name("new.png").write_bytes(file.read_bytes())
    elif change == "renamed":
        for file in (mask, image):
            file.rename(file.with_name("cell_03a.png"))  # still in the same place of the order
    elif change == "time":
        stat = mask.stat()
        os.utime(mask, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    else:
        Image.new("RGB", (56, 40)).save(image)
    assert (9 in loaded(folder).classes.values) == (change == "mask")
    assert len(looks) == 20 + (change == "added")


def test_a_moved_folder_is_known(tmp_path, looks):
    loaded(write_folder(tmp_path / "data", 12, seed=0))
    looks.clear()
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    loaded(tmp_path / "elsewhere")
    assert looks == []


def test_a_damaged_or_impossible_cache_only_costs_time(tmp_path, looks, monkeypatch):
    folder = write_folder(tmp_path / "data", 12, seed=0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = loaded(folder)
    files = list(cache.cache_folder().glob("*.json"))
    assert len(files) == 3  # both splits and the brightness
    for file in files:
        file.write_text(file.read_text()[:-5])
    assert same(loaded(folder), first) and len(looks) == 24
    assert json.loads(files[0].read_text())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert same(loaded(folder), first) and len(looks) == 36


def test_a_mask_that_changed_its_size_after_the_check_is_named(tmp_path):
    data = loaded(write_folder(tmp_path / "data", 12, seed=0))
    dataset = TrainingDataset(data.train, lambda source, name: Preprocess().image(source, 3, name), data.classes)
    slot = Slot(0, 0, 40, 56)
    assert dataset[slot][1].shape == (40, 56)
    Image.new("L", (20, 10)).save(data.train[0]["mask"])
    with pytest.raises(DataError, match="image is 40 x 56, its mask 10 x 20"):
        dataset[slot]


@pytest.mark.parametrize("kind", [TrainingDataset, EvaluationDataset])
def test_a_skipped_sample_is_blank_and_counts_nowhere(tmp_path, kind):
    data = loaded(write_folder(tmp_path / "data", 12, seed=0))

    def read(source: object, name: str) -> np.ndarray:
        raise ImageError(f"{name}: broken")

    dataset = kind(data.train, read, data.classes, fill=(1, 2.5, 3), skip=ERRORS)
    image, mask, _, problem = dataset[Slot(0, 0, 24, 32)]
    assert (image.amin(dim=(1, 2)).tolist(), image.amax(dim=(1, 2)).tolist()) == ([1, 2.5, 3], [1, 2.5, 3])
    assert mask.shape == (24, 32) and (mask == 255).all() and problem.endswith("broken")
    with pytest.raises(ImageError):
        kind(data.train, read, data.classes, fill=(1, 2.5, 3))[Slot(0, 0, 24, 32)]


@pytest.mark.parametrize("size", [(16, 16), (40, 10), (64, 64)])
def test_crops_favour_rare_classes_and_stay_inside(size):
    mask = np.zeros((40, 56), np.uint8)
    mask[38, 54] = 3
    seen = 0
    for seed in range(600):
        window = tuple(slice(*part) for part in crop_window(mask, size, np.random.default_rng(seed)))
        assert mask[window].shape == tuple(np.minimum(size, mask.shape))
        seen += 3 in mask[window]
    # a third of the crops are around one of the two classes; the others meet the pixel in a corner by chance
    assert seen == 600 if size == (64, 64) else 60 < seen < 200


def test_crops_of_an_ignored_mask_are_taken_anywhere():
    mask = np.full((40, 56), 255, np.uint8)
    starts = {crop_window(mask, (8, 8), np.random.default_rng(seed))[0][0] for seed in range(300)}
    assert starts == set(range(33))


def write_large(folder: Path, *, coloured: bool = False) -> Path:
    """4 pairs of tiled TIFFs, 200 x 260; class 2 (or a colour) in the lower right corner only, the rest 0 and 1."""
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for i in range(4):
        image = rng.integers(0, 256, (200, 260, 3), np.uint8)
        mask = np.zeros((200, 260), np.uint8)
        mask[:, 130 + 10 * i :] = 1
        mask[190:, 250:] = 2
        options = {"tile": (64, 48), "compression": "zlib"}
        tifffile.imwrite(folder / "images" / f"{i}.tif", image, photometric="rgb", **options)
        if coloured:
            mask = np.array([(0, 0, 0), (9, 9, 9), (255, 0, 0)], np.uint8)[mask]
        tifffile.imwrite(
            folder / "masks" / f"{i}.tif", mask, photometric="rgb" if coloured else "minisblack", **options
        )
    return folder


@pytest.mark.parametrize("coloured", [False, True], ids=["numbers", "colours"])
@pytest.mark.parametrize("scale", [1.0, 0.45])
def test_crops_of_large_images_are_read_in_windows_and_equal_those_of_the_whole(tmp_path, monkeypatch, coloured, scale):
    folder = write_large(tmp_path / "data", coloured=coloured)
    plain = loaded(folder, crop_size=(64, 64))
    monkeypatch.setattr("data_utils.large.LARGE", 200 * 260)
    monkeypatch.setattr("data_utils.large.BAND", 260 * 70)
    data = loaded(folder, crop_size=(64, 64), open_rows=open_regions)
    again = loaded(folder, crop_size=(64, 64), open_rows=open_regions)  # remembered
    assert data.class_pixels == plain.class_pixels and data.classes == plain.classes
    assert sorted(data.train_places) == [0, 1, 2]
    for index, places in data.train_places.items():
        mask = plain.classes.encode(read_mask(data.train[index]["mask"], ""), "")
        for of_class, remembered, number in zip(places, again.train_places[index], range(3), strict=True):
            assert len(of_class) == 64 and (mask[tuple(of_class.T)] == number).all()
            np.testing.assert_array_equal(of_class, remembered)
    preprocess, sources = Preprocess(scale=scale), []
    crops = Crops(open_regions, preprocess.target_size, partial(input_window, preprocess=preprocess, channels=3))
    options = {"crop_size": (64, 64), "fill": data.mean}
    read = lambda source, name: sources.append(name) or preprocess.image(source, 3, name)  # noqa: E731
    windows = TrainingDataset(data.train, read, data.classes, places=data.train_places, crops=crops, **options)
    whole = TrainingDataset(data.train, read, data.classes, **options)
    rare = 0
    for epoch in range(60):
        image, mask, _, problem = windows[Slot(epoch % 3, epoch, 64, 64)]
        assert not sources and problem is None and image.shape[1:] == mask.shape == (64, 64)
        rare += bool((mask == 2).any())
        if epoch < 6:  # where no class was favoured, which is drawn alike, both took the same crop
            expected, expected_mask, _, _ = whole[Slot(epoch % 3, epoch, 64, 64)]
            favoured = np.random.default_rng([0, epoch, epoch % 3, 1]).random() < 1 / 3
            if not favoured:
                assert (image.int() - expected.int()).abs().max() <= 1
                assert (image != expected).float().mean() < 1e-3
                np.testing.assert_array_equal(mask, expected_mask)
            sources.clear()
    assert rare > 5  # chance alone: a few in a hundred at scale 1


def test_a_large_image_that_does_not_fit_its_mask_is_named(tmp_path, monkeypatch):
    folder = write_large(tmp_path / "data")
    monkeypatch.setattr("data_utils.large.LARGE", 200 * 260)
    tifffile.imwrite(folder / "masks" / "1.tif", np.zeros((200, 259), np.uint8))
    (folder / "masks" / "2.tif").write_bytes((folder / "masks" / "2.tif").read_bytes()[:400])
    report, problems = checked(folder, open_rows=open_regions, val_fraction=0.01, classes="0=a,1=b,2=c")
    assert problems == 2, report
    assert "1.tif: image is 200 x 260, its mask 200 x 259" in report
    assert "2.tif" in report and "cannot be read" in report


def test_what_looks_like_a_mistake_is_said_at_the_start(tmp_path):
    folder = write_folder(tmp_path / "data", 12, seed=0, values=(0, 1))
    assert loaded(folder).doubts == ()
    stray = np.array(Image.open(folder / "masks" / "cell_03.png"))
    stray[0, 0] = 37
    Image.fromarray(stray).save(folder / "masks" / "cell_03.png")
    (line,) = loaded(folder).doubts
    assert line.startswith("less than 0.01% of all mask pixels are 37 (1 pixels, in 1 masks, the first is cell_03.png)")
    assert "to check: less than 0.01%" in checked(folder)[0]
    assert loaded(folder, classes="0=a,1=b,37=c").doubts == ()
    assert loaded(folder, ignore_index="37").doubts == ()


def test_one_class_stored_in_two_ways_is_said_at_the_start(tmp_path):
    folder = write_folder(tmp_path / "data", 8, seed=0, values=(0, 1))
    mask = np.array(Image.open(folder / "masks" / "cell_05.png")) * 255
    Image.fromarray(mask).save(folder / "masks" / "cell_05.png")
    (line,) = loaded(folder).doubts
    assert line.startswith(
        "some masks hold 1 (in 7 masks, the first is cell_00.png), others 255 (in 1 masks, the first"
    )
    both = np.where(np.array(Image.open(folder / "masks" / "cell_04.png")), 255, 1).astype(np.uint8)
    Image.fromarray(both).save(folder / "masks" / "cell_04.png")  # so 255 is a border
    assert loaded(folder).doubts == ()


def test_images_of_another_depth_than_the_others_are_said_at_the_start(tmp_path):
    folder = write_folder(tmp_path / "data", 6, seed=0)
    Image.fromarray(np.full((40, 56), 4000, np.uint16)).save(folder / "images" / "cell_02.png")
    data = loaded(folder)
    (line,) = data.doubts
    assert "(RGB: 5, I;16: 1)" in line
    assert data.pixel_types == ("uint16", "uint8")


def test_problems_are_not_remembered(tmp_path):
    folder = write_folder(tmp_path / "data", 12, seed=0)
    file, content = folder / "masks" / "cell_03.png", (folder / "masks" / "cell_03.png").read_bytes()
    stamp = file.stat().st_mtime_ns
    file.write_bytes(b"x" * len(content))
    for _ in range(2):
        with pytest.raises(DataError, match=r"cell_03\.png: mask cannot be read"):
            loaded(folder)
    file.write_bytes(content)
    os.utime(file, ns=(stamp, stamp))
    assert len(loaded(folder).train) == 11


def test_all_problems_are_reported_at_once(broken):
    (broken / "train" / "images" / "alone.png").write_bytes((broken / "train/images/cell_20.png").read_bytes())
    report, count = checked(broken, classes=CLASSES)
    assert count == 10 and "problems: 10" in report
    for i in range(9):
        assert f"    cell_{i:02}" in report
    for line in (
        "file without partner: 1",
        "image cannot be read: 4",
        "mask cannot be read: 2",
        "mask of another size: 1",
        "unknown mask value: 1",
        "number of channels: 1",
        "alone.png: image without mask",
        "cell_06.png has mask values [0, 37, 255], classes are 0, 255",
        "sizes (height x width): 40 x 56: ",
        "image modes: RGB: ",
        "cell_08.png: image cannot be read ([Errno 2] No such file",
    ):
        assert line in report, report
    shares = [float(line.split()[1]) for line in report.splitlines() if " %  " in line]
    assert len(shares) == 3 and sum(shares) == pytest.approx(100, abs=0.01)


def test_a_report_names_twenty_files_of_a_problem(tmp_path):
    folder = write_folder(tmp_path, 30, seed=0)
    for i in range(25):
        (folder / "masks" / f"cell_{i:02}.png").write_bytes(b"")
    report, count = checked(folder)
    assert count == 25 and "mask cannot be read: 25" in report
    assert report.count(": mask cannot be read (") == 20 and report.splitlines()[-1].strip() == "..."


def test_swapped_folders_are_guessed(tmp_path):
    folder = write_folder(tmp_path, 12, seed=0)
    (folder / "images").rename(folder / "x")
    (folder / "masks").rename(folder / "images")
    (folder / "x").rename(folder / "masks")
    with pytest.raises(DataError, match="are images and masks swapped"):
        loaded(folder)
    assert "swapped" in checked(folder)[0]


@pytest.mark.parametrize("group", [r"^(\w+)_", r"^[a-z]+"])
def test_groups_are_held_out_whole(tmp_path, group):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for volume, slices in (("a", 2), ("bb", 9), ("c", 4), ("d", 5)):
            for i in range(slices):
                Image.new("L", (8, 8), i % 2).save(tmp_path / kind / f"{volume}_{i}.png")
    for seed in range(4):
        data = loaded(tmp_path, val_group=group, seed=seed, val_fraction=0.2)
        train, val = ({record["name"].split("_")[0] for record in part} for part in (data.train, data.val))
        assert train and val and not train & val
        assert len(data.train) + len(data.val) == 20 and len(data.val) >= 4


@pytest.mark.parametrize(
    ("group", "message"),
    [("(", "is no regular expression"), ("z", "matches nothing in the name cell_00.png"), ("cell", "into one group")],
)
def test_a_group_that_cannot_split_is_one_line(tmp_path, group, message):
    with pytest.raises(DataError, match=message):
        loaded(write_folder(tmp_path, 5, seed=0), val_group=group)


def test_check_data_ends_with_1_where_there_are_problems(broken, tiny_folder, tmp_path):
    result = launch("train.py", "--dataset", broken, "--classes", CLASSES, "--check-data")
    assert result.returncode == 1 and "problems: 9" in result.stdout and "Traceback" not in result.stderr
    result = launch("train.py", "--dataset", tiny_folder, "--check-data", "--output-dir", tmp_path / "run")
    assert result.returncode == 0 and "no problems" in result.stdout, result.stderr
    assert not (tmp_path / "run").exists()


def test_bad_samples_are_skipped_in_one_order_on_any_number_of_processes(broken, tmp_path):
    options = ["--classes", CLASSES, "--on-bad-sample", "skip", "--epochs", "1", "--log-every", "1", "--max-steps", "6"]
    command = ["train.py", "--dataset", broken, *TINY, *options, "--tracker", "none", "--optimizer", "sgd"]
    losses = []
    for profile in ("cpu", "multi_cpu"):
        result = launch(*command, "--output-dir", tmp_path / profile, profile=profile)
        assert result.returncode == 0, result.stderr
        assert "9 bad samples were skipped in training" in result.stdout
        assert all(f"cell_{i:02}" in result.stdout for i in range(9))
        records = map(json.loads, (tmp_path / profile / "metrics.jsonl").read_text().splitlines())
        losses.append([record["train/loss"] for record in records if "train/loss" in record])
    assert len(losses[0]) == 6 and losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_bad_samples_end_training_otherwise_and_the_output_folder_may_be_given_again(broken, tmp_path, fails_with):
    command = ["train.py", "--dataset", broken, "--classes", CLASSES, *TINY, "--output-dir", tmp_path / "run"]
    fails_with(launch(*command), "pairs cannot be used: cell_00.png", 1)
    result = launch(*command, "--on-bad-sample", "skip", "--max-steps", "1", "--tracker", "none")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("crop", [[], ["--crop-size", "24", "24"]], ids=["whole", "crop"])
def test_a_cached_run_is_the_same_run(tiny_folder, tmp_path, crop):
    command = [
        "train.py",
        "--dataset",
        tiny_folder,
        *TINY,
        "--scale",
        "0.7",
        "--tracker",
        "none",
        "--epochs",
        "1",
        *crop,
    ]
    command += ["--log-every", "1", "--optimizer", "sgd"]
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    records = []
    for name, flag in (("plain", []), ("first", ["--cache"]), ("second", ["--cache"])):
        result = launch(*command, *flag, "--output-dir", tmp_path / name, env=environment)
        assert result.returncode == 0, result.stderr
        assert ("decoding for --cache" in result.stderr) == (name == "first")
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        records.append([{k: v for k, v in json.loads(line).items() if "perf" not in k} for line in lines])
    assert len(records[0]) > 4 and records[0] == records[1] == records[2]
    assert len(list((tmp_path / "cache").rglob("*.arrow"))) == 2


def test_what_cannot_be_decoded_is_skipped_from_the_cache_too(broken, tmp_path):
    options = ["--classes", CLASSES, "--on-bad-sample", "skip", "--max-steps", "6", "--tracker", "none", *TINY]
    for name in ("first", "second"):
        command = ["train.py", "--dataset", broken, *options, "--cache", "--output-dir", tmp_path / name]
        result = launch(*command, profile="multi_cpu" if name == "second" else None)
        assert result.returncode == 0, result.stderr
        assert "9 bad samples were skipped in training" in result.stdout


def test_what_a_killed_run_left_of_the_cache_is_cleared_and_what_another_is_writing_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pair, folder = (np.ones((1, 2, 3), np.uint8), np.ones((2, 3), np.uint8)), tmp_path / "unet-accelerate"
    # killed in the middle, as by the kernel when memory runs out
    lines = "import os, numpy as np\nfrom data_utils.decoded import decode_once\n"
    lines += "prepare = lambda i: (np.ones((1, 2, 3), np.uint8), np.ones((2, 3), np.uint8))\n"
    lines += "stop = lambda items, *_: (os.kill(os.getpid(), 9) if i == 5 else x for i, x in enumerate(items))\n"
    lines += "decode_once(prepare, 9, 'killed', (), stop)"
    assert launch("-c", lines, env={"XDG_CACHE_HOME": str(tmp_path)}).returncode == -9
    assert len(list(folder.glob("*.partial"))) == 1
    (folder / "busy.partial").write_bytes(b"x")
    with FileLock(folder / "busy.lock"):
        decoded = decode_once(lambda i: pair, 2, "other", (), progress)
    np.testing.assert_array_equal(decoded[1][0], pair[0])
    assert [path.name for path in folder.glob("*.partial")] == ["busy.partial"]
    assert len(list(folder.glob("*.arrow"))) == 1


def test_a_cache_that_could_not_be_finished_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def prepare(index: int) -> tuple[np.ndarray, np.ndarray]:
        if index == 5:
            raise OSError(28, "No space left on device")
        return np.ones((1, 2, 3), np.uint8), np.ones((2, 3), np.uint8)

    with pytest.raises(DataError, match="No space left on device"):
        decode_once(prepare, 9, "full", (), progress)
    assert [path.suffix for path in (tmp_path / "unet-accelerate").iterdir()] == [".lock"]


def test_what_cannot_be_cached_says_so(fails_with, tmp_path):
    result = launch("train.py", "--cache", *TINY, "--output-dir", tmp_path / "run")
    fails_with(result, "--cache keeps what is decoded from local files", 1)
