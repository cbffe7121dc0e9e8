"""Files of objects: masks, pictures, tables, probabilities and COCO.

Modules: tasks/objects/labels.py, tasks/objects/write.py.
"""

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rasterio
import tifffile
from PIL import Image
from pycocotools import mask
from support.formats import object_format
from support.prediction import image_job
from support.written_files import PLACE, SIZE, TILTED, tilted_volume_job

from data_utils.image_io.formats import PageFile
from runtime.errors import DataError
from tasks.job import MASK, Job
from tasks.objects import write as objects_module
from tasks.objects.decode import DetectedObject
from tasks.objects.labels import AnnotatedObjects, class_indices, label_classes, label_numbers, pack_labels
from tasks.objects.write import (
    IMAGE_COLUMNS,
    TABLE,
    VOLUME_COLUMNS,
    place_cells,
    run_lengths,
    table_rows,
    write_coco,
)
from tasks.prediction import PredictedImage, Prediction

DETECTED = DetectedObject(1, 2, 10, (1.25, 2.5), (0, 1, 3, 4), 0.54321)


LABELS = np.array([[1, 1, 0, 3], [1, 1, 0, 3], [0, 2, 2, 2]], np.uint16)


def write_object_table(file: Path, *rows: tuple[int, str, tuple[int, int, int, int]]) -> Path:
    """A table of objects of four pixels: number, class, box."""
    lines = [",".join(IMAGE_COLUMNS)]
    for number, name, (top, left, bottom, right) in rows:
        lines.append(f"{number},{name},4,0.5,0.5,{top},{left},{bottom},{right},0.75")
    file.write_text("\n".join(lines) + "\n")
    return file


def write_labels(file: Path, labels: np.ndarray = LABELS) -> Path:
    Image.fromarray(labels).save(file)
    return file


NAMES = ("nothing", "cell", "dirt")
CELLS = object_format("cell")


ANNOTATED_CLASSES = [
    (1, "cell"),
    (2, "dust"),
    (255, "crowd"),
    (0, "nothing"),
    ((1, 2, 3), "color"),
    (7, "dirt"),
    (9, "cell"),
]


def test_annotated_objects_have_the_classes_of_the_model():
    drawn = np.array([[0, 1, 2], [3, 4, 4]]), np.array([0, 1, 7, 255, 2])
    source = SimpleNamespace(render_objects=lambda: drawn)
    annotated = AnnotatedObjects(source, class_indices(ANNOTATED_CLASSES, ("dirt", "cell")))
    objects = annotated.render()
    assert label_numbers(objects).tolist() == [[0, 1, 2], [3, 4, 4]]
    assert label_classes(objects).tolist() == [[0, 2, 1], [255, 0, 0]]


def test_outlines_of_an_object_have_its_color():
    rows = np.zeros((20, 20), np.int32)
    rows[5:15, 5:15] = 2
    labels = pack_labels(rows, np.sign(rows))
    shown = CELLS.section.draw(np.zeros((20, 20, 3), np.uint8), labels)
    assert shown[5, 10].tolist() == CELLS.section.colorize(labels)[5, 10].tolist() != [0, 0, 0]


def test_objects_that_touch_have_an_outline_between_them():
    labels = pack_labels(np.array([[1] * 10 + [13] * 10] * 9), np.ones((1, 1), int))
    shown = CELLS.section.draw(np.zeros((9, 20, 3), np.uint8), labels)
    assert (shown[4].any(axis=1) == (np.abs(np.arange(20) - 9.5) < 1)).all()


NUMBERS = np.random.default_rng(0).integers(0, 70_000, (150, 3))
NUMBERS[:10] %= 3  # large numbers come in later strips


@pytest.fixture
def job(tmp_path) -> Job:
    """An image whose objects are to be written."""
    (tmp_path / "out").mkdir()
    return image_job(tmp_path, size=SIZE)


def write_mask(job: Job, numbers: np.ndarray, count: int, missing: np.ndarray | None = None) -> None:
    """Write the mask of an image with so many objects."""
    prediction = Prediction(pack_labels(numbers, np.ones((1, 1), int)), [DETECTED] * count)
    CELLS.write(PredictedImage(job, numbers.shape, prediction, missing=missing), (MASK,))


@pytest.mark.parametrize(("count", "name"), [(65_535, "a.png"), (65_536, "a.tif")])
def test_a_mask_is_a_tiff_from_the_number_on_that_a_png_does_not_hold(job, count, name):
    write_mask(job, np.array([[0, count], [1, 2]]), count)
    assert CELLS.mask_file(job).name == name
    assert [file.name for file in job.output.parent.iterdir()] == [name]


def test_a_mask_takes_the_place_of_an_earlier_one_of_the_other_format_and_is_no_tiff_beside_it(job, monkeypatch):
    """A PNG holds no more than two objects."""
    monkeypatch.setattr(objects_module, "MOST_IN_MASK", 2)
    job.file(MASK).write_bytes(b"of an earlier call")
    write_mask(job, NUMBERS, 3)
    assert CELLS.mask_file(job) == job.file(".tif")
    assert np.array_equal(tifffile.imread(job.file(".tif")), NUMBERS)
    assert not job.file(MASK).exists()
    write_mask(job, NUMBERS[:1] % 3, 2)
    assert np.array_equal(np.asarray(Image.open(job.file(MASK))), NUMBERS[:1] % 3)
    assert not job.file(".tif").exists()
    job.file(".tif").write_bytes(b"of somebody else")
    assert CELLS.mask_file(job) == job.file(MASK)


@pytest.mark.parametrize(("objects", "dtype", "nodata"), [(65_534, np.uint16, 65_535), (65_535, np.uint32, 2**32 - 1)])
def test_a_place_without_data_has_a_number_that_no_object_has(tmp_path, objects, dtype, nodata):
    job = Job(source=PageFile(tmp_path / "a.tif"), size=(2, 2), root=tmp_path, stem=Path("out"), place=PLACE)
    numbers = np.array([[0, 1], [2, objects]])
    write_mask(job, numbers, objects, np.array([[True, False], [False, False]]))
    written = tifffile.imread(tmp_path / "out.tif")
    assert written.dtype == dtype
    assert written.tolist() == [[nodata, 1], [2, objects]]
    with rasterio.open(tmp_path / "out.tif") as file:
        assert file.nodata == nodata


FORMAT = object_format(*NAMES[1:])
SOLID = DETECTED._replace(center=(1.0, 2.0, 0.5), box=(0, 1, 0, 3, 4, 2))


TWO = Prediction(np.zeros((3, 4), np.int32), [DETECTED, DETECTED._replace(number=2, class_index=1)])


def test_the_table_of_an_image_says_of_each_object_its_class_and_score(tmp_path):
    job = replace(image_job(tmp_path), root=tmp_path, stem=Path("a"))
    FORMAT.write_table(PredictedImage(job, (3, 4), TWO))
    lines = job.file(TABLE).read_text().splitlines()
    assert lines[1:] == ["1,dirt,10,1.25,2.50,0,1,3,4,0.5432", "2,cell,10,1.25,2.50,0,1,3,4,0.5432"]
    assert b"\r" not in job.file(TABLE).read_bytes()


def test_cells_of_an_object_in_a_volume_say_its_place_in_millimeters():
    header = SimpleNamespace(affine=TILTED)
    x, y, z, _ = TILTED @ [0.5, 2.0, 1.0, 1]
    expected = ["90", f"{x:.3f}", f"{y:.3f}", f"{z:.3f}", "0", "1", "0", "3", "4", "2"]
    assert place_cells(SOLID, header) == expected
    assert place_cells(SOLID._replace(size=137), header)[0] == "1233"
    shear = np.eye(4)
    shear[1, 2] = 0.5  # of a tilted gantry: slices of another place, and voxels of the same volume
    assert place_cells(SOLID, SimpleNamespace(affine=shear @ TILTED))[0] == "90"


@pytest.fixture
def jobs(tmp_path) -> list[Job]:
    """An image with mask and table, one without a mask, one without a table, and a volume with both."""
    jobs = [image_job(tmp_path, name) for name in ("sub/a\udce9", "no_mask", "no_table")]
    jobs.append(tilted_volume_job(tmp_path))
    for job in jobs:
        job.file(MASK).parent.mkdir(parents=True, exist_ok=True)
    for job in (jobs[0], jobs[2], jobs[3]):
        job.file(MASK).write_bytes(b"mask")
    for job in jobs[:2]:
        write_object_table(job.file(TABLE), (1, "cell", (0, 0, 2, 2)), (2, "dirt", (2, 1, 3, 4)))
    row = dict.fromkeys(VOLUME_COLUMNS, "7") | {"class": "cell"}
    jobs[3].file(TABLE).write_text(",".join(VOLUME_COLUMNS) + "\n" + ",".join(row.values()) + "\n")
    return jobs


def read_joined(folder: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and rows of the table of all objects."""
    with (folder / "objects.csv").open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        table = csv.DictReader(file)
        rows = list(table)
    return table.fieldnames, rows


def test_a_table_of_all_objects_has_those_of_images_with_mask_and_table(tmp_path, jobs, capsys):
    FORMAT.write_joined(tmp_path / "out", jobs)
    assert f"{tmp_path}/out/objects.csv lists 3 objects in 2 images" in capsys.readouterr().out
    _, rows = read_joined(tmp_path / "out")
    assert [row["image"] for row in rows] == ["sub/a\udce9.tif", "sub/a\udce9.tif", "v.nii"]
    assert [row["area"] for row in rows] == ["4", "4", ""]
    assert [row["voxels"] for row in rows] == ["", "", "7"]


@pytest.mark.parametrize("step", [1, -1], ids=["images first", "volumes first"])
def test_a_table_of_all_objects_has_each_column_of_images_or_volumes_once(tmp_path, jobs, step):
    FORMAT.write_joined(tmp_path / "out", jobs[::step])
    columns, _ = read_joined(tmp_path / "out")
    assert len(columns) == len(set(columns))
    assert set(columns) == {"image", *IMAGE_COLUMNS, *VOLUME_COLUMNS}


@pytest.mark.parametrize(
    "line",
    [
        "x,cell,4,0,0,0,0,2,2,0.5",
        "1,cell,4,0,0,0,0,2,2,high",
        "1,cell",
        pytest.param("1," + 200_000 * "x", id="a cell that csv refuses"),
    ],
)
def test_a_table_of_objects_with_a_changed_row_is_refused(tmp_path, line):
    table = write_object_table(tmp_path / "a.csv", (1, "cell", (0, 0, 2, 2)))
    with table.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=r"a\.csv: is not as prediction wrote it"):
        list(table_rows(table, IMAGE_COLUMNS))


@pytest.mark.parametrize("text", ["number,class\n", ""], ids=["two columns", "empty"])
def test_a_table_of_objects_with_other_columns_is_refused(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match="expected the columns number, class, area"):
        list(table_rows(tmp_path / "a.csv", IMAGE_COLUMNS))


@pytest.mark.parametrize(("top", "left"), [(0, 0), (7, 9), (3, 5)])
@pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
def test_run_lengths_of_an_object_are_decoded_by_pycocotools(share, top, left):
    box = np.random.default_rng(0).random((6, 8)) < share
    box[0, 0] = True
    picture = np.zeros((13, 17), np.uint8)
    picture[top : top + 6, left : left + 8] = box
    encoded = run_lengths(box, (top, left), picture.shape)
    assert encoded["size"] == [13, 17]
    assert np.array_equal(mask.decode(encoded), picture)


@pytest.fixture
def images(tmp_path) -> list[Job]:
    """The jobs of three images whose mask and table are written: of two objects, of one, and of none."""
    rows_of = {
        "a": [(1, "cell", (0, 0, 2, 2)), (3, "dirt", (0, 3, 2, 4))],
        "b": [(2, "dirt", (2, 1, 3, 4))],
        "c": [],
    }
    jobs = [
        replace(image_job(tmp_path, name), root=tmp_path.parent, stem=Path(tmp_path.name, name)) for name in rows_of
    ]
    for job, rows in zip(jobs, rows_of.values(), strict=True):
        write_object_table(job.file(TABLE), *rows)
        write_labels(job.file(MASK))
    return jobs


def read_coco(folder: Path) -> dict:
    return json.loads((folder / "objects.json").read_text())


def test_a_coco_file_lists_categories_images_and_objects(tmp_path, images):
    write_coco(tmp_path, images, object_format("dirt", "cell"))
    content = read_coco(tmp_path)
    assert content["categories"] == [{"id": 1, "name": "dirt"}, {"id": 2, "name": "cell"}]
    assert content["images"] == [
        {"id": 1, "file_name": f"{tmp_path.name}/a.tif", "height": 3, "width": 4},
        {"id": 2, "file_name": f"{tmp_path.name}/b.tif", "height": 3, "width": 4},
        {"id": 3, "file_name": f"{tmp_path.name}/c.tif", "height": 3, "width": 4},
    ]
    annotations = content["annotations"]
    listed = [(item["id"], item["image_id"], item["category_id"], item["bbox"]) for item in annotations]
    assert listed == [(1, 1, 2, [0, 0, 2, 2]), (2, 1, 1, [3, 0, 1, 2]), (3, 2, 1, [1, 2, 3, 1])]
    assert [item["area"] for item in annotations] == [4, 4, 4]
    assert [item["iscrowd"] for item in annotations] == [0, 0, 0]
    assert [item["score"] for item in annotations] == [0.75, 0.75, 0.75]


def test_a_coco_file_leaves_out_images_without_a_mask(tmp_path):
    stems = [Path(tmp_path.name, name) for name in ("a", "failed")]
    jobs = [replace(image_job(tmp_path, stem.name), root=tmp_path.parent, stem=stem) for stem in stems]
    write_labels(tmp_path / "a.png")
    for job in jobs:  # the mask takes its place last
        write_object_table(job.file(TABLE), (1, "cell", (0, 0, 2, 2)))
    write_coco(tmp_path, jobs, object_format("cell", "dirt"))
    (entry,) = read_coco(tmp_path)["images"]
    assert entry["file_name"] == f"{tmp_path.name}/a.tif"


@pytest.mark.parametrize("row", [(1, "dust", (0, 0, 2, 2)), (1, "cell", (2, 2, 3, 4))], ids=["class", "place"])
def test_a_coco_file_is_not_written_of_a_table_that_is_not_of_the_mask(tmp_path, images, row):
    write_object_table(images[2].file(TABLE), row)
    with pytest.raises(DataError, match=r"c\.objects\.csv: object 1 is not one of the mask"):
        write_coco(tmp_path, images, object_format("cell", "dirt"))
