"""A folder for each image, with a mask for each of its objects.

Modules: data_utils/sources/annotations/one_object_masks.py.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.data_sets import unnoticed_changes
from support.objects import discs, picture

from data_utils.config import DataConfig
from data_utils.sources.annotations import one_object_masks
from data_utils.sources.load import load_records
from data_utils.targets.find import find_task
from runtime.errors import DataError

SIZE = (20, 30)


def write_set(root: Path, counts: dict[str, int]) -> dict[str, np.ndarray]:
    """A folder for each image, with so many masks; returns the numbers that are to be read."""
    expected = {}
    for name, count in counts.items():
        ids = np.zeros(SIZE, np.uint16)
        for kind in ("images", "masks"):
            (root / name / kind).mkdir(parents=True)
        for number in range(1, count + 1):
            mask = np.zeros(SIZE, np.uint8)
            mask[2 * number : 2 * number + 3, 3:9] = 255  # each overlaps the one before
            ids[mask > 0] = number
            Image.fromarray(mask).save(root / name / "masks" / f"m{number}.png")
        Image.fromarray(np.zeros(SIZE, np.uint8)).save(root / name / "images" / f"{name}.png")
        expected[name] = ids
    return expected


def test_one_object_masks_are_numbered_in_the_order_of_their_names(tmp_path):
    expected = write_set(tmp_path, {"s2": 3, "s10": 0, "s1": 7})
    records = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    assert [record["name"] for record in records] == ["s1.png", "s2.png", "s10.png"]
    for record in records:
        ids, values = record["target"].render_objects()
        assert np.array_equal(ids, expected[Path(record["name"]).stem])
        assert np.array_equal(record["target"].render(), ids)
        assert values.tolist() == [0] + [1] * int(ids.max())


def test_images_of_a_set_of_one_object_masks_have_the_names_of_its_folders(tmp_path):
    write_set(tmp_path, {"s2": 3, "s10": 0, "s1": 7})
    (tmp_path / "s1/notes").mkdir()
    images = [(name, tmp_path / name / "images" / f"{name}.png") for name in ("s1", "s2", "s10")]
    assert one_object_masks.find_object_images(tmp_path) == images
    assert one_object_masks.find_object_images(tmp_path / "s1") == []


def test_an_image_of_one_object_masks_has_the_ending_of_its_file(tmp_path):
    write_set(tmp_path, {"a": 1})
    (tmp_path / "a/images/a.png").rename(tmp_path / "a/images/scan.PNG")
    (record,) = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    assert record["name"] == "a.PNG"


def test_one_object_masks_of_different_sizes_are_refused(tmp_path):
    write_set(tmp_path, {"a": 3})
    Image.fromarray(np.zeros((30, 20), np.uint8)).save(tmp_path / "a" / "masks" / "m9.png")
    (record,) = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    with pytest.raises(DataError, match=r"its masks m1\.png and m9\.png have different sizes, 20 x 30 and 30 x 20"):
        record["target"].render()


def test_one_object_masks_of_two_images_are_refused(tmp_path):
    write_set(tmp_path, {"a": 3, "b": 1})
    Image.fromarray(np.zeros(SIZE, np.uint8)).save(tmp_path / "a" / "images" / "other.png")
    assert one_object_masks.find_object_images(tmp_path) == []
    with pytest.raises(DataError, match="holds 2 images, expected the one that masks/ belongs to"):
        one_object_masks.open_records(tmp_path, allow_unpaired=False)


def digest_of(folder: Path) -> str:
    return one_object_masks.open_records(folder, allow_unpaired=False).digest


def test_a_change_of_each_of_the_one_object_masks_is_noticed(tmp_path):
    write_set(tmp_path, {"a": 2, "b": 1})
    assert unnoticed_changes(sorted(tmp_path.rglob("*.png")), lambda: digest_of(tmp_path)) == []


@pytest.mark.parametrize("name", ["m3.png", "m\udce9.png"], ids=["text", "no UTF-8"])
def test_another_name_of_a_one_object_mask_is_noticed(tmp_path, name):
    write_set(tmp_path, {"a": 2, "b": 1})
    digest = digest_of(tmp_path)
    (tmp_path / "a" / "masks" / "m2.png").rename(tmp_path / "a" / "masks" / name)
    assert digest_of(tmp_path) != digest


def test_an_object_without_pixels_keeps_its_number(tmp_path):
    write_set(tmp_path, {"a": 3})
    Image.fromarray(np.zeros(SIZE, np.uint8)).save(tmp_path / "a/masks/m2.png")
    (record,) = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    ids, values = record["target"].render_objects()
    assert np.unique(ids).tolist() == [0, 1, 3]
    assert values.tolist() == [0, 1, 1, 1]


def test_the_key_of_one_object_masks_is_computed_once(tmp_path):
    write_set(tmp_path, {"a": 1})
    records = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    assert records.digest is records.digest


def test_folders_of_one_object_masks_without_image_are_named(tmp_path):
    write_set(tmp_path, {"a": 2, "b": 1})
    (tmp_path / "c" / "images").mkdir(parents=True)
    (tmp_path / "d").mkdir()
    with pytest.raises(DataError, match=r"c: has no image; d: has no image"):
        digest_of(tmp_path)


def test_one_object_masks_may_be_many_and_colored_beside_hidden_files(tmp_path):
    write_set(tmp_path, {"a": 0, "b": 1})
    masks = tmp_path / "a" / "masks"
    picture = np.zeros((*SIZE, 3), np.uint8)
    for number in range(1, 301):
        row, column = divmod(number, SIZE[1])
        picture[:] = 0
        picture[row, column, number % 3] = 9  # in one of the three channels
        Image.fromarray(picture).save(masks / f"m{number}.png", compress_level=0)
    (masks / "._m1.png").write_bytes(b"what a Mac leaves behind")
    (record, _) = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    numbers = np.zeros(SIZE, np.uint16)
    numbers.flat[1:301] = range(1, 301)
    assert np.array_equal(record["target"].render(), numbers)


@pytest.fixture
def three_splits(tmp_path) -> Path:
    """Sets of six images with a mask each, in folders called train, val and other."""
    for split in ("train", "val", "other"):
        write_set(tmp_path / split, dict.fromkeys("abcdef", 1))
    return tmp_path


def pairs_of(root: Path, *splits: str) -> dict[str, tuple[Path, Path]]:
    return {name: (root / name, root / name) for name in splits}


def without_masks(folder: Path) -> None:
    """Remove the masks of an image, with their folder."""
    (folder / "masks/m1.png").unlink()
    (folder / "masks").rmdir()


def test_one_object_masks_of_splits_are_found_by_their_names(three_splits):
    assert one_object_masks.find(three_splits, ()) == pairs_of(three_splits, "train", "val")
    assert {*one_object_masks.find(three_splits, ("train", "other"))} == {"train", "val", "other"}


def test_one_object_masks_without_splits_are_for_training(three_splits):
    other = three_splits / "other"
    assert one_object_masks.find(other, ()) == {"train": (other, other)}


def test_an_empty_folder_holds_no_one_object_masks(tmp_path):
    assert one_object_masks.find(tmp_path, ()) == {}


def test_a_set_is_known_by_its_first_five_folders(three_splits):
    without_masks(three_splits / "train/f")
    without_masks(three_splits / "val/c")
    assert one_object_masks.find(three_splits, ()) == pairs_of(three_splits, "train")


def test_a_folder_of_a_set_without_masks_is_named(three_splits):
    without_masks(three_splits / "train/f")
    with pytest.raises(DataError, match=r"1 file without partner: f: has no masks; --allow-unpaired"):
        one_object_masks.open_records(three_splits / "train", allow_unpaired=False)


def test_a_folder_of_a_set_without_masks_is_left_out_on_request(three_splits):
    without_masks(three_splits / "train/f")
    splits = one_object_masks.find(three_splits, ())
    opened = one_object_masks.load(three_splits, splits, allow_unpaired=True)["train"]()
    assert len(opened) == 5
    assert opened.metadata.unpaired == ("f: has no masks",)


def test_folders_without_a_mask_or_an_image_each_are_no_images_of_a_set(three_splits):
    without_masks(three_splits / "val/c")
    (three_splits / "other/b/images/b.png").unlink()
    shutil.rmtree(three_splits / "train/f/images")
    assert one_object_masks.find_object_images(three_splits / "val") == []
    assert one_object_masks.find_object_images(three_splits / "other") == []
    assert one_object_masks.find_object_images(three_splits / "train") == []


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("m1.png", 65_536, ": holds 65,536 masks, at most 65,535 are read"),
        ("gone.png", 65_535, r"/gone\.png"),  # the first one is read
    ],
    ids=["too many", "just enough"],
)
def test_one_object_masks_are_as_many_as_16_bits_number(tmp_path, monkeypatch, name, count, message):
    write_set(tmp_path, {"a": 1})
    (record,) = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    monkeypatch.setattr(one_object_masks, "picture_names", lambda _: [name] * count)
    with pytest.raises(DataError, match=f"{tmp_path}/a/masks{message}"):
        record["target"].render()


@pytest.mark.parametrize(
    ("is_file", "reason"), [(False, "No such file or directory"), (True, "Not a directory")], ids=["gone", "a file"]
)
def test_a_folder_of_one_object_masks_that_is_gone_or_a_file_is_a_one_line_error(tmp_path, is_file, reason):
    write_set(tmp_path, {"a": 1})
    (record,) = one_object_masks.open_records(tmp_path, allow_unpaired=False)
    without_masks(tmp_path / "a")
    if is_file:
        (tmp_path / "a/masks").touch()
    with pytest.raises(DataError, match=rf"{tmp_path / 'a/masks'} cannot be read \({reason}\)"):
        record["target"].render()


def write_discs_apart(folder: Path, counts: list[int]) -> Path:
    """The layout of DSB2018: pictures of 40 x 56 of so many discs, with a mask for each disc."""
    for index, count in enumerate(counts):
        sample = folder / f"sample{index}"
        (sample / "images").mkdir(parents=True)
        (sample / "masks").mkdir()
        ids = discs((40, 56), count, seed=index)
        Image.fromarray(picture(ids)).save(sample / "images" / f"sample{index}.png")
        for number in range(1, int(ids.max()) + 1):
            mask = np.where(ids == number, 255, 0).astype(np.uint8)
            Image.fromarray(mask).save(sample / "masks" / f"{number:03}.png")
    return folder


def test_a_folder_of_masks_for_each_image_is_for_objects(tmp_path):
    config = DataConfig(dataset=str(write_discs_apart(tmp_path, [4, 6, 9, 7])))
    train, _ = load_records(config)
    assert find_task(train, config) == "objects"
    assert {record["name"] for record in train} <= {f"sample{index}.png" for index in range(4)}


def test_a_folder_of_masks_for_each_image_is_read_as_numbers(tmp_path):
    counts = [4, 6, 9, 7]
    train, _ = load_records(DataConfig(dataset=str(write_discs_apart(tmp_path, counts))))
    record = train[0]
    index = int(record["name"][6])
    np.testing.assert_array_equal(record["target"].render(), discs((40, 56), counts[index], seed=index))


def test_an_image_without_objects_has_an_empty_folder(tmp_path):
    write_discs_apart(tmp_path, [0, 4, 5])
    config = DataConfig(dataset=str(tmp_path))
    masks = {record["name"]: record["target"].render() for split in load_records(config) for record in split}
    assert masks["sample0.png"].shape == (40, 56)
    assert masks["sample0.png"].max() == 0


def test_a_folder_without_image_is_named_in_a_data_set(tmp_path):
    write_discs_apart(tmp_path, [2, 3, 4])
    (tmp_path / "sample0" / "images" / "sample0.png").unlink()
    with pytest.raises(DataError, match="sample0: has no image; --allow-unpaired leaves them out"):
        load_records(DataConfig(dataset=str(tmp_path)))


def test_a_mask_of_another_size_is_refused_as_it_is_read(tmp_path):
    write_discs_apart(tmp_path, [2, 3, 4])
    for folder in tmp_path.iterdir():
        Image.new("L", (8, 8)).save(folder / "masks" / "small.png")
    train, _ = load_records(DataConfig(dataset=str(tmp_path)))
    with pytest.raises(DataError, match="have different sizes, 40 x 56 and 8 x 8"):
        train[0]["target"].render()
