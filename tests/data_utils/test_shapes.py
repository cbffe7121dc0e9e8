"""Synthetic shapes: every sample follows from seed and index, here and exported.

Modules: data_utils/shapes.py, data_utils/sources/shapes.py.
"""

import numpy as np
import pytest
from PIL import Image

from data_utils import shapes
from data_utils.sources.records import Records
from data_utils.sources.shapes import VAL_FIRST, Shapes


@pytest.fixture
def export(monkeypatch):
    """A function that runs the script with these flags."""

    def run(*flags: object) -> None:
        monkeypatch.setattr("sys.argv", ["shapes", *map(str, flags)])
        shapes.main()

    return run


@pytest.mark.parametrize(
    ("record", "same_record"),
    [
        (Shapes(10, seed=3)[7], Shapes(2, seed=3, first=6)[1]),
        (Shapes(2)[1], Shapes(2, seed=0)[1]),
    ],
    ids=["first", "default seed"],
)
def test_a_record_depends_on_seed_and_global_index_alone(record, same_record):
    assert record["name"] == same_record["name"]
    assert np.array_equal(record["image"], same_record["image"])
    assert np.array_equal(record["target"], same_record["target"])


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


def test_export_writes_images_and_masks_of_classes_in_colors_that_read_back(tmp_path, export):
    export(tmp_path / "data", "--train", 3, "--val", 2, "--seed", 5)
    for split, rows in {"train": Shapes(3, seed=5), "val": Shapes(2, seed=5, first=VAL_FIRST)}.items():
        records = Records(rows)
        names = [f"{record['name']}.png" for record in records]
        assert sorted(path.name for path in (tmp_path / "data" / split / "images").iterdir()) == names
        for record, name in zip(records, names, strict=True):
            assert np.array_equal(Image.open(tmp_path / "data" / split / "images" / name), record["image"])
            mask = Image.open(tmp_path / "data" / split / "masks" / name)
            assert mask.mode == "P"
            assert np.array_equal(mask, record["target"])
            assert len({color for _, color in mask.convert("RGB").getcolors()}) == len(np.unique(record["target"]))


@pytest.mark.parametrize(
    ("output", "flags"), [(".", ()), ("mine.txt", ()), ("new", ("--train", -1))], ids=["in use", "file", "negative"]
)
def test_export_refuses_to_spoil_a_folder(tmp_path, output, flags, export, capsys):
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(SystemExit, match="2"):
        export(tmp_path / output, *flags)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert (tmp_path / "mine.txt").read_text() == "kept"
