"""Synthetic shapes: every sample follows from seed and index, here and exported.

Modules: data_utils/shapes.py, data_utils/sources/shapes.py.
"""

import subprocess

import numpy as np
import pytest
from PIL import Image
from support.launches import launch

from data_utils.config import DataConfig
from data_utils.sources.load import load_records
from data_utils.sources.shapes import CLASS_NAMES, SIZES, VAL_FIRST, Shapes, add_object


def are_same(record: dict, other: dict) -> bool:
    return record["name"] == other["name"] and all(
        np.array_equal(record[key], other[key]) for key in ("image", "target")
    )


def export(*args: object) -> subprocess.CompletedProcess:
    return launch("-m", "data_utils.shapes", *args)


def test_records_are_as_many_as_are_asked_for():
    records = Shapes(12, first=17)
    assert len(records) == 12
    assert len(list(records)) == 12
    assert records[0]["name"] == "shapes-000017"


def test_records_hold_an_image_in_color_and_its_mask():
    for record in Shapes(12, first=17):
        height, width = record["target"].shape
        assert record["image"].shape == (height, width, 3)
        assert record["image"].dtype == np.uint8
        assert record["target"].dtype == np.uint8
        assert record["target"].max() < len(CLASS_NAMES)


@pytest.mark.parametrize(
    ("record", "same_record"),
    [
        (Shapes(10, seed=3)[7], Shapes(2, seed=3, first=6)[1]),
        (Shapes(10, seed=3)[-1], Shapes(10, seed=3)[np.int64(9)]),
        (Shapes(2)[1], Shapes(2, seed=0)[1]),
    ],
    ids=["first", "negative", "default seed"],
)
def test_a_record_depends_on_seed_and_global_index_alone(record, same_record):
    assert are_same(record, same_record)


def test_a_record_of_another_seed_is_another():
    assert not np.array_equal(Shapes(8, seed=3)[7]["image"], Shapes(8, seed=4)[7]["image"])


def test_records_of_both_splits_are_different():
    images = {record["image"].tobytes() for record in [*Shapes(20), *Shapes(20, first=VAL_FIRST)]}
    assert len(images) == 40


def test_the_data_set_has_240_pictures_to_train_on():
    train, _ = load_records(DataConfig("shapes"))
    assert len(train) == 240
    assert train.name(0) == "shapes-000000"


def test_the_data_set_has_48_other_pictures_to_validate_on():
    _, val = load_records(DataConfig("shapes"))
    assert len(val) == 48
    assert val.name(0) == "shapes-1000000"


@pytest.mark.parametrize(
    ("index", "pixels", "colors", "greys"),
    [
        (0, [15377, 6037, 160, 260, 1206], [80.0, 90.8, 67.0], [[15, 30, 47, 64], [33, 83, 81, 97], [32, 86, 35, 97]]),
        (1, [8727, 0, 3100, 0, 173], [55.0, 87.9, 94.7], [[103, 93, 130], [89, 95, 110], [51, 84, 63]]),
        (2, [18059, 0, 1605, 943, 2433], [91.5, 83.7, 80.5], [[61, 43, 38, 41], [72, 73, 160, 90], [60, 99, 80, 52]]),
    ],
)
def test_the_pictures_of_all_versions_are_the_same(index, pixels, colors, greys):
    record = Shapes(3)[index]
    assert np.bincount(record["target"].ravel(), minlength=5) == pytest.approx(pixels, abs=9)
    assert record["image"].mean(axis=(0, 1)) == pytest.approx(colors, abs=0.5)
    assert record["image"][:81:40, ::40].mean(axis=2) == pytest.approx(np.array(greys), abs=3)


@pytest.mark.parametrize("index", [5, -6])
def test_an_index_out_of_range_is_an_index_error(index):
    with pytest.raises(IndexError, match=f"index {index} of 5"):
        Shapes(5)[index]


def test_an_index_that_is_no_whole_number_is_a_type_error():
    with pytest.raises(TypeError):
        Shapes(5)[0.5]


def test_sizes_are_those_of_the_pictures():
    records = Shapes(40, seed=1, first=5)
    assert records.sizes.tolist() == [list(record["target"].shape) for record in records]
    assert {tuple(size) for size in records.sizes.tolist()} == set(SIZES)
    assert Shapes(0).sizes.shape == (0, 2)


@pytest.fixture(scope="module")
def sixty_masks():
    return [record["target"] for record in Shapes(60)]


def test_every_class_is_common(sixty_masks):
    shares = np.bincount(np.concatenate([mask.ravel() for mask in sixty_masks]), minlength=len(CLASS_NAMES))
    assert (shares / shares.sum() > 0.04).all()  # of five classes


def test_every_picture_has_an_object(sixty_masks):
    assert all(mask.any() for mask in sixty_masks)


def test_color_alone_does_not_tell_the_classes():
    """Choosing the nearest of the five mean colors falls far short of what a network reaches (0.95)."""
    records = list(Shapes(30))
    pixels = np.concatenate([record["image"].reshape(-1, 3) for record in records]).astype(np.float32)
    labels = np.concatenate([record["target"].ravel() for record in records])
    means = np.stack([pixels[labels == k].mean(axis=0) for k in range(len(CLASS_NAMES))])
    nearest = ((pixels[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    hits = [((labels == k) & (nearest == k)).sum() for k in range(len(CLASS_NAMES))]
    either = [((labels == k) | (nearest == k)).sum() for k in range(len(CLASS_NAMES))]
    assert np.mean(np.divide(hits, either)) < 0.65  # measured 0.63


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder that three training and two validation pictures of seed 5 were exported to."""
    out = tmp_path_factory.mktemp("export") / "data"
    result = export(out, "--train", 3, "--val", 2, "--seed", 5)
    assert result.returncode == 0, result.stderr
    return out


SPLITS = {"train": Shapes(3, seed=5), "val": Shapes(2, seed=5, first=VAL_FIRST)}


@pytest.mark.parametrize(("split", "records"), SPLITS.items(), ids=SPLITS)
def test_export_writes_a_pair_of_files_for_each_record(exported, split, records):
    names = [f"{record['name']}.png" for record in records]
    assert sorted(path.name for path in (exported / split / "images").iterdir()) == names
    assert sorted(path.name for path in (exported / split / "masks").iterdir()) == names


@pytest.mark.parametrize(("split", "records"), SPLITS.items(), ids=SPLITS)
def test_export_writes_images_that_read_back(exported, split, records):
    for record in records:
        assert np.array_equal(Image.open(exported / split / "images" / f"{record['name']}.png"), record["image"])


@pytest.mark.parametrize(("split", "records"), SPLITS.items(), ids=SPLITS)
def test_export_writes_masks_of_classes_in_colors_that_read_back(exported, split, records):
    for record in records:
        mask = Image.open(exported / split / "masks" / f"{record['name']}.png")
        assert mask.mode == "P"
        assert np.array_equal(mask, record["target"])
        assert len({color for _, color in mask.convert("RGB").getcolors()}) == len(np.unique(record["target"]))


@pytest.fixture
def folder_in_use(tmp_path):
    """A folder with a file of the user."""
    (tmp_path / "mine.txt").write_text("kept")
    return tmp_path


@pytest.mark.parametrize(
    ("output", "flags"), [(".", ()), ("mine.txt", ()), ("new", ("--train", -1))], ids=["in use", "file", "negative"]
)
def test_export_refuses_to_spoil_a_folder(folder_in_use, output, flags):
    result = export(folder_in_use / output, *flags)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in folder_in_use.iterdir()] == ["mine.txt"]
    assert (folder_in_use / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize("seed", range(8))
def test_an_object_fades_into_its_surroundings_on_each_side(seed):
    image = np.full((240, 240, 3), 100, np.float32)
    mask = np.zeros((240, 240), np.uint8)
    add_object(np.random.default_rng(seed), image, mask)
    change = np.abs(image / 100 - 1).max(axis=2)
    assert change.max() > 0.2
    assert mask.any()
    rows, columns = change.max(axis=1), change.max(axis=0)
    sides = [rows, rows[::-1], columns, columns[::-1]]
    for shares in sides:
        first = int((shares > 0).argmax())
        assert first == 0 or shares[first] < 0.15  # at the border of the picture it is cut
