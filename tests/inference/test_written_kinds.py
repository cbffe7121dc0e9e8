"""What is written of classes that overlap, regions, objects and points, read again by other means, without a run.

Modules: inference/outputs/bits.py, inference/outputs/overlapping.py, inference/outputs/regions.py,
inference/outputs/object_masks.py, inference/outputs/object_tables.py, inference/outputs/coco.py,
inference/outputs/points.py, inference/scoring/points.py, inference/provenance.py, inference/outputs/jobs.py,
inference/outputs/objects.py, inference/outputs/rasters.py.
"""

import csv
import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import BinaryIO

import nibabel
import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from data_utils.class_map import ClassMap
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.places import Place
from data_utils.image_io.volumes import read_label_volume, read_volume, read_volume_header
from data_utils.image_io.windowed import WindowedArray, open_windowed
from data_utils.sources.points.files import FORMATS, content, read_written
from data_utils.sources.points.spaces import from_voxels
from data_utils.sources.points.table import PointTable
from data_utils.visualize_points import render_points, render_volume_points
from inference.decoding import canvas
from inference.decoding.finder import DetectedObject
from inference.decoding.landmarks import PredictedPoints
from inference.outputs import objects as objects_module
from inference.outputs.classes import ClassFormat
from inference.outputs.coco import run_lengths, write_coco
from inference.outputs.images import ImageWriter
from inference.outputs.jobs import MASK, OVERLAY, PROBABILITIES, UNCERTAINTY, ImageJob, RasterJob, VolumeJob
from inference.outputs.object_masks import AnnotatedObjects, WrittenObjects, indices_of_values
from inference.outputs.object_tables import IMAGE_COLUMNS, VOLUME_COLUMNS, image_cells, table_rows, volume_cells
from inference.outputs.objects import TABLE, LabelTiff, ObjectFormat
from inference.outputs.overlapping import OverlapFormat, PageFormat, folder_names
from inference.outputs.points import PointFormat, PointImageWriter, PointVolumeWriter
from inference.outputs.rasters import free_value, open_mask_raster
from inference.outputs.regions import RegionFormat
from inference.outputs.volumes import VolumeWriter
from inference.outputs.writer import PredictionWriter
from inference.provenance import provenance_of
from inference.scoring import new_image_scorer, new_volume_scorer
from inference.scoring.points import PointScorer, as_prediction, true_points, with_truths
from inference.scoring.truth import ImageScorer, ScoreError
from inference.scoring.volume import VolumeScorer
from runtime.errors import DataError, ImageError, SettingsError
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from tasks.matching import classes_of, numbers_of, pack_labels
from tasks.objects import Objects
from tasks.overlapping import Overlapping
from tasks.points import ABSENT, PRESENT, UNKNOWN
from tasks.regions import Region
from unet.config import Preprocess, UNetConfig

CLASSES = ("blood", "a/b", "A_B", "...")
SIZE = (9, 7)


def image_job(folder: Path, name: str = "a", size: tuple[int, int] = SIZE) -> ImageJob:
    return ImageJob(image=folder / f"{name}.tif", size=size, output=folder / "out" / name, root=folder / "out")


def volume_job(folder: Path, size: tuple[int, int, int] = (3, 4, 5)) -> VolumeJob:
    image = folder / "v.nii"
    affine = np.array([[0, -2.0, 0, 9], [1.5, 0, 0, -4], [0, 0, 3.0, 1], [0, 0, 0, 1]])
    nibabel.save(nibabel.Nifti1Image(np.zeros((size[1], size[2], size[0]), np.float32), affine), image)
    volume = VolumeFile((str(image),))
    header = read_volume_header(volume, "v")
    return VolumeJob(image=image, size=header.size, output=folder / "out" / "v", volume=volume)


def test_folders_of_classes_have_names_of_their_own_on_any_system():
    assert folder_names(CLASSES) == ["blood", "a_b", "A_B_2", "class"]
    assert folder_names(("x", "X", "x ", "x?")) == ["x", "X_2", "x_3", "x_"]
    assert folder_names((r"""a<b>c:d"e\f|g?h*i""", "j\nk\x1f.")) == ["a_b_c_d_e_f_g_h_i", "j_k_"]
    assert folder_names(("class", " . ")) == ["class", "class_2"]


@pytest.fixture
def bits() -> np.ndarray:
    """(H, W) int32: any of the four classes at each pixel."""
    return np.random.default_rng(0).integers(0, 16, SIZE, dtype=np.int32)


def written_strips(output_format, job: ImageJob, prediction: np.ndarray) -> None:
    """Write a mask in strips of 4 rows."""
    with output_format.open_mask(job, prediction.shape, None) as mask:
        for top in range(0, len(prediction), 4):
            mask.write(output_format.mask_values(prediction[top : top + 4]))


def test_each_class_that_may_overlap_has_masks_of_0_and_255_in_its_folder(tmp_path, bits):
    output_format = OverlapFormat(CLASSES)
    job = image_job(tmp_path, "sub/a")
    written_strips(output_format, job, bits)
    for bit, folder in enumerate(("blood", "a_b", "A_B_2", "class")):
        mask = np.asarray(Image.open(tmp_path / "out" / folder / "sub" / "a.png"))
        assert np.array_equal(mask, 255 * (bits >> bit & 1))
    assert output_format.mask_file(job) == tmp_path / "out" / "blood" / "sub" / "a.png"
    with open_windowed(output_format.written_mask(job)) as picture:
        target = output_format.reader.of_mask(np.asarray(picture.read(0, SIZE[0])), "a")
    assert np.array_equal(target.truth, bits)
    assert (target.known == 15).all()
    tall = volume_job(tmp_path)
    prediction = np.random.default_rng(1).integers(0, 16, tall.size, dtype=np.int32)
    output_format.write_volume(tall, prediction)
    values, _ = read_label_volume(output_format.written_volume(tall), "v")
    assert np.array_equal(output_format.reader.of_label_volume(values, "v").truth, prediction)
    writer = VolumeWriter(output_format, Overlapping(CLASSES), tuple(output_format.mask_extensions))
    logits = torch.tensor(np.stack([prediction >> bit & 1 for bit in range(4)])) - 0.5
    other = replace(tall, output=tmp_path / "other" / "v")
    assert np.array_equal(writer.write(other, tall.size, [logits]), prediction)
    values, _ = read_label_volume(output_format.written_volume(other), "v")
    assert np.array_equal(output_format.reader.of_label_volume(values, "v").truth, prediction)
    last = nibabel.load(tmp_path / "out" / "class" / "v.nii.gz")
    assert np.array_equal(last.affine, nibabel.load(tall.image).affine)
    assert sorted(np.unique(last.dataobj).tolist()) == [0, 255]
    assert (np.asarray(last.dataobj) > 0).sum() == (prediction >= 8).sum()


def test_a_tiff_of_classes_that_may_overlap_has_a_page_of_0_and_1_for_each(tmp_path, bits):
    output_format = OverlapFormat(CLASSES).for_file(tmp_path / "a.tiff")
    assert isinstance(output_format, PageFormat)
    job = image_job(tmp_path)
    written_strips(output_format, job, bits)
    with tifffile.TiffFile(tmp_path / "out" / "a.tiff") as tiff:
        assert np.array_equal([page.asarray() for page in tiff.pages], [bits >> bit & 1 for bit in range(4)])
    with open_windowed(output_format.written_mask(job)) as picture:
        target = output_format.reader.of_mask(np.asarray(picture.read(0, SIZE[0])), "a")
    assert np.array_equal(target.truth, bits)
    with pytest.raises(SettingsError, match=r"a\.PNG: classes that may overlap have a mask each; give a folder"):
        OverlapFormat(CLASSES).for_file(tmp_path / "a.PNG")


def test_pictures_of_classes_that_overlap_show_the_last_and_say_the_share_of_each(bits):
    output_format = OverlapFormat(CLASSES)
    last = [[int(value).bit_length() for value in row] for row in bits]
    assert output_format.shades(bits).tolist() == last
    assert output_format.names == ("nothing", *CLASSES)
    entries = output_format.legend_entries(bits)
    shares = [(bits >> bit & 1).mean() for bit in range(4)]
    assert [entry.text for entry in entries] == [f"{n} {s:.1%}" for n, s in zip(CLASSES, shares, strict=True)]
    assert [entry.color for entry in entries] == [tuple(color) for color in output_format.colors[1:].tolist()]


def test_outlines_have_the_colors_of_their_classes_or_objects():
    picture = np.zeros((20, 20, 3), np.uint8)
    rows = np.zeros((20, 20), np.int32)
    rows[5:15, 5:15] = 2
    overlapping = OverlapFormat(CLASSES)
    name_index = overlapping.names.index("a/b")
    assert overlapping.overlay(picture, rows)[5, 10].tolist() == overlapping.colors[name_index].tolist()
    objects = ObjectFormat(("nothing", "cell"))
    decoder = SimpleNamespace(objects=[DETECTED, DETECTED._replace(number=2, shade=7)])
    shown = objects.of_prediction(decoder).overlay(picture, pack_labels(rows, np.sign(rows)))
    assert shown[5, 10].tolist() == objects.colors[7].tolist()


def test_the_ninth_of_the_classes_that_may_overlap_has_a_mask_and_a_color():
    output_format = OverlapFormat(tuple("abcdefghi"))
    prediction = np.array([[256, 1, 257, 0]], np.int32)
    masks = output_format.class_masks(prediction)
    assert masks[8].tolist() == [[255, 0, 255, 0]]
    assert masks[0].tolist() == [[0, 255, 255, 0]]
    assert output_format.shades(prediction).tolist() == [[9, 1, 9, 0]]


def test_the_prediction_of_a_volume_holds_the_ninth_of_the_classes_that_may_overlap(tmp_path):
    output_format = OverlapFormat(tuple("abcdefghi"))
    job = volume_job(tmp_path)
    logits = torch.full((9, *job.size), -1.0)
    logits[8, 2, 3, 4] = 1.0
    writer = VolumeWriter(output_format, Overlapping(tuple("abcdefghi")), tuple(output_format.mask_extensions))
    prediction = writer.write(job, job.size, [logits])
    assert prediction[2, 3, 4] == prediction.sum() == 256


def test_regions_are_written_as_the_first_value_of_the_last_one():
    regions = (Region("whole", (1, 2, 3)), Region("core", (2, 3)), Region("active", (300,)))
    output_format = RegionFormat(regions, ())
    rows = np.arange(8).reshape(2, 4)
    assert output_format.mask_values(rows).tolist() == [[0, 1, 2, 2], [300, 300, 300, 300]]
    assert output_format.mask_values(rows).dtype == np.uint16
    assert output_format.written_values == (0, 1, 2, 300)
    properties = [output_format.area_properties(0, number, None) for number in (1, 3)]
    assert properties == [{"class": "whole", "value": 1}, {"class": "active", "value": 300}]
    assert RegionFormat(regions[:2], ()).mask_values(rows % 4).dtype == np.uint8
    largest = RegionFormat((Region("a", (255,)),), ()).mask_values(rows % 2)
    assert largest.max() == 255
    assert largest.dtype == np.uint8
    assert RegionFormat((Region("a", (1,)),), ()).mask_values(rows % 2).max() == 1
    assert RegionFormat((Region("a", (256,)),), ()).mask_values(rows % 2).max() == 256
    largest_first = RegionFormat((Region("a", (300,)), Region("b", (7,))), ()).mask_values(rows % 4)
    assert largest_first.tolist() == [[0, 300, 7, 7]] * 2
    assert largest_first.dtype == np.uint16
    for value in (65536, -1):
        with pytest.raises(ImageError, match=f"mask value {value} cannot be written: a PNG mask holds 0 to 65535"):
            RegionFormat((Region("a", (value,)),), ()).mask_values(rows)
    assert RegionFormat((Region("a", (65535,)),), ()).mask_values(rows % 2).max() == 65535


def test_regions_of_a_model_know_nothing_where_its_masks_were_ignored():
    task = {"name": "regions", "regions": [["whole", [3, 5]], ["core", [5]]]}
    preprocess = Preprocess(class_names=("whole", "core"), ignore_value=0, joined_values=((9, 255), (7, 1)))
    reader = RegionFormat.of_model(UNetConfig(num_classes=2, task=task, preprocess=preprocess)).reader
    target = reader.of_mask(np.array([[0, 3, 5, 9, 1, 7]], np.uint8), "a")
    assert target.known.tolist() == [[0, 3, 3, 0, 3, 3]]
    assert target.truth.tolist() == [[0, 1, 3, 0, 0, 0]]


def write_table(file: Path, *rows: tuple) -> Path:
    """A table of objects: number, class, box."""
    lines = [",".join(IMAGE_COLUMNS)]
    for number, name, (top, left, bottom, right) in rows:
        lines.append(f"{number},{name},4,0.5,0.5,{top},{left},{bottom},{right},0.75")
    file.write_text("\n".join(lines) + "\n")
    return file


LABELS = np.array([[1, 1, 0, 3], [1, 1, 0, 3], [0, 2, 2, 2]], np.uint16)


def test_written_objects_have_the_classes_of_their_table(tmp_path):
    Image.fromarray(LABELS).save(tmp_path / "a.png")
    rows = [(1, "cell", (0, 0, 2, 2)), (2, "dirt", (2, 1, 3, 4)), (3, "cell", (0, 3, 2, 4))]
    table = write_table(tmp_path / "a.csv", *rows)
    objects = WrittenObjects(tmp_path / "a.png", table, ("cell", "dirt")).render()
    assert np.array_equal(numbers_of(objects), LABELS)
    assert np.array_equal(classes_of(objects), np.array([0, 1, 2, 1])[LABELS])
    Image.fromarray(np.array([[7, 0, 4]], np.uint16)).save(tmp_path / "gaps.png")  # somebody has erased the others
    write_table(table, (4, "dirt", (0, 2, 1, 3)), (7, "cell", (0, 0, 1, 1)))
    assert classes_of(WrittenObjects(tmp_path / "gaps.png", table, ("cell", "dirt")).render()).tolist() == [[1, 0, 2]]
    for row in ((4, "cell", (0, 0, 1, 1)), (0, "cell", (0, 0, 1, 1)), (3, "dust", (0, 3, 2, 4))):
        write_table(table, row)
        with pytest.raises(DataError, match=rf"object {row[0]} is not one of .*a\.png; --overwrite makes it anew"):
            WrittenObjects(tmp_path / "a.png", table, ("cell", "dirt")).render()


def test_a_written_mask_of_objects_of_several_classes_is_read_with_its_table(tmp_path):
    output_format = ObjectFormat(("nothing", "cell", "dirt"))
    job = replace(image_job(tmp_path), output=tmp_path / "a", root=tmp_path)
    Image.fromarray(LABELS).save(tmp_path / "a.png")
    rows = [(1, "cell", (0, 0, 2, 2)), (2, "dirt", (2, 1, 3, 4)), (3, "cell", (0, 3, 2, 4))]
    write_table(job.file(TABLE), *rows)
    written = output_format.written_mask(job)
    target = output_format.reader_of(written).of_mask(written.render(), "a")
    assert np.array_equal(numbers_of(target.prediction), LABELS)
    assert np.array_equal(classes_of(target.prediction), np.array([0, 1, 2, 1])[LABELS])
    assert ObjectFormat(("nothing", "cell")).written_mask(job) == (tmp_path / "a.png", 0)


def test_written_objects_of_several_classes_are_scored_against_annotations(tmp_path):
    names = ("nothing", "cell", "dirt")
    Image.fromarray(LABELS).save(tmp_path / "a.png")
    job = replace(image_job(tmp_path, size=(3, 4)), output=tmp_path / "a", root=tmp_path)
    rows = [(1, "cell", (0, 0, 2, 2)), (2, "dirt", (2, 1, 3, 4)), (3, "cell", (0, 3, 2, 4))]
    write_table(job.file(TABLE), *rows)
    scorer = ImageScorer(ObjectFormat(names), Objects(Classes(names)))
    found = []
    for values in ((0, 1, 2, 1), (0, 1, 2, 2)):  # the third is a cell, or dirt
        drawn = (LABELS.astype(int), np.array(values))
        truth = AnnotatedObjects(SimpleNamespace(render_objects=lambda drawn=drawn: drawn), (0, 1, 2))
        entry = scorer.score(replace(job, truth=truth)).to_json("a.tif")
        found.append((entry["found"], entry["ap50"]))
    assert found == [(3, 1.0), (2, 0.5)]


DETECTED = DetectedObject(1, 2, 10, (1.25, 2.5), (0, 1, 3, 4), 0.54321, 0)


def test_the_table_of_an_image_says_of_each_object_its_class_and_score(tmp_path):
    decoder = SimpleNamespace(objects=[DETECTED, DETECTED._replace(number=2, class_index=1)])
    with (tmp_path / "a.csv").open("wb") as file:
        ObjectFormat(("nothing", "cell", "dirt")).write_tables({TABLE: file}, decoder, None)
    lines = (tmp_path / "a.csv").read_text().splitlines()
    output_format = ObjectFormat(("nothing", "cell", "dirt"))
    properties = [output_format.area_properties(0, number, decoder) for number in (1, 2)]
    assert properties == [{"number": 1, "class": "dirt"}, {"number": 2, "class": "cell"}]
    assert lines[1:] == ["1,dirt,10,1.25,2.50,0,1,3,4,0.5432", "2,cell,10,1.25,2.50,0,1,3,4,0.5432"]
    assert b"\r" not in (tmp_path / "a.csv").read_bytes()
    solid = DETECTED._replace(center=(1.0, 2.0, 0.5), box=(0, 1, 0, 3, 4, 2))
    with (tmp_path / "v.csv").open("wb") as file:
        header = SimpleNamespace(spacing=(3.0, 1.5, 2.0), affine=np.diag([2.0, 1.5, 3.0, 1.0]))
        output_format.write_tables({TABLE: file}, SimpleNamespace(objects=[solid]), header)
    assert (tmp_path / "v.csv").read_text().splitlines() == [
        "number,class,voxels,volume_mm3,x_mm,y_mm,z_mm,first_z,first_y,first_x,end_z,end_y,end_x,score",
        "1,dirt,10,90,1.000,3.000,3.000,0,1,0,3,4,2,0.5432",
    ]


def test_objects_have_the_colors_of_their_prediction_and_are_counted():
    output_format = ObjectFormat(("nothing", "cell"))
    decoder = SimpleNamespace(
        objects=[DETECTED._replace(number=number, shade=shade) for number, shade in ((1, 5), (2, 3))]
    )
    rows = pack_labels(np.array([[0, 2, 1, 1]]), np.array([[0, 1, 1, 1]]))
    assert output_format.of_prediction(decoder).shades(rows).tolist() == [[0, 3, 5, 5]]
    texts = [output_format.legend_entries(part)[0].text for part in (rows[:, :1], rows[:, :2], rows)]
    assert texts == ["0 objects", "1 object", "2 objects"]
    assert output_format.legend_entries(rows[:, 1:])[0].text == "2 objects"  # without any background
    many = pack_labels(np.arange(1235)[None], np.ones((1, 1235), int))
    assert output_format.legend_entries(many)[0] == (None, "1,234 objects")


def test_a_table_of_all_objects_has_those_of_images_with_mask_and_table(tmp_path, capsys):
    output_format = ObjectFormat(("nothing", "cell", "dirt"))
    jobs = [image_job(tmp_path, name) for name in ("sub/a\udce9", "no_mask", "no_table")] + [volume_job(tmp_path)]
    for job in jobs:
        job.file(MASK).parent.mkdir(parents=True, exist_ok=True)
    for job in (jobs[0], jobs[2], jobs[3]):
        job.file(MASK).write_bytes(b"mask")
    for job in jobs[:2]:
        write_table(job.file(TABLE), (1, "cell", (0, 0, 2, 2)), (2, "dirt", (2, 1, 3, 4)))
    row = dict.fromkeys(VOLUME_COLUMNS, "7") | {"class": "cell"}
    jobs[3].file(TABLE).write_text(",".join(VOLUME_COLUMNS) + "\n" + ",".join(row.values()) + "\n")
    output_format.write_joined(tmp_path / "out", jobs)
    with (tmp_path / "out" / "objects.csv").open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        table = csv.DictReader(file)
        rows = list(table)
    assert len(table.fieldnames) == len(set(table.fieldnames))
    assert [row["image"] for row in rows] == ["sub/a\udce9.tif", "sub/a\udce9.tif", "v.nii"]
    assert [(row["area"], row["voxels"]) for row in rows] == [("4", ""), ("4", ""), ("", "7")]
    assert set(rows[0]) == {"image", *IMAGE_COLUMNS, *VOLUME_COLUMNS}
    output_format.write_joined(tmp_path / "out", jobs[:1])
    header = (tmp_path / "out" / "objects.csv").read_text(errors="replace").splitlines()[0]
    assert header == "image,number,class,area,center_y,center_x,top,left,bottom,right,score"
    output_format.write_joined(tmp_path / "out", jobs[3:])
    header = (tmp_path / "out" / "objects.csv").read_text().splitlines()[0]
    assert header.startswith("image,number,class,voxels,volume_mm3,x_mm,y_mm,z_mm,first_z,")
    assert f"3 objects in 2 images are listed in {tmp_path / 'out' / 'objects.csv'}" in capsys.readouterr().out


def test_a_mask_of_very_many_objects_comes_in_strips(tmp_path, monkeypatch):
    monkeypatch.setattr(objects_module, "MOST_IN_PNG", 2)
    numbers = np.random.default_rng(0).integers(0, 70_000, (150, 3))
    job = image_job(tmp_path)
    job.output.parent.mkdir()
    output_format = ObjectFormat(("nothing", "cell"))
    job.file(MASK).write_bytes(b"of an earlier call")
    with output_format.open_mask(job, numbers.shape, SimpleNamespace(objects=[DETECTED] * 3)) as mask:
        for top in range(0, 150, 7):
            mask.write(output_format.mask_values(pack_labels(numbers[top : top + 7], np.ones((1, 1), int))))
    assert np.array_equal(tifffile.imread(tmp_path / "out" / "a.tif"), numbers)
    assert output_format.mask_file(job) == tmp_path / "out" / "a.tif"
    assert not job.file(MASK).exists()
    with output_format.open_mask(job, (1, 3), SimpleNamespace(objects=[DETECTED] * 2)) as mask:  # fewer, this time
        mask.write(output_format.mask_values(pack_labels(numbers[:1] % 3, np.ones((1, 1), int))))
    assert np.array_equal(np.asarray(Image.open(job.file(MASK))), numbers[:1] % 3)
    assert not (tmp_path / "out" / "a.tif").exists()
    (tmp_path / "out" / "a.tif").write_bytes(b"of somebody else")
    assert output_format.mask_file(job) == job.file(MASK)
    with output_format.open_mask(image_job(tmp_path, "b"), (1, 3), SimpleNamespace(objects=[DETECTED] * 3)) as mask:
        mask.write(numbers[:1])  # no earlier call has written a PNG
    assert np.array_equal(tifffile.imread(tmp_path / "out" / "b.tif"), numbers[:1])


@pytest.mark.parametrize("height", [63, 128, 150])
def test_a_large_mask_may_come_whole(tmp_path, height):
    numbers = np.random.default_rng(0).integers(0, 70_000, (height, 3), dtype=np.uint32)
    with LabelTiff(tmp_path / "a.tif", numbers.shape) as mask:
        mask.write(numbers)
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        assert np.array_equal(tiff.asarray(), numbers)
        assert len(tiff.pages) == 1


def test_nothing_is_written_of_an_image_that_is_given_up(tmp_path):
    with pytest.raises(RuntimeError, match="stopped"), LabelTiff(tmp_path / "a.tif", (300, 3)) as mask:
        mask.write(np.ones((100, 3), np.uint32))
        raise RuntimeError("stopped")
    assert not (tmp_path / "a.tif").exists()


PLACE = Place((2.0, 0.0, 0.0, 0.0, -2.0, 0.0), None, ())


@pytest.mark.parametrize(("objects", "dtype", "nodata"), [(65_534, np.uint16, 65_535), (65_535, np.uint32, 2**32 - 1)])
def test_a_place_without_data_has_a_number_that_no_object_has(tmp_path, objects, dtype, nodata):
    job = RasterJob(image=tmp_path / "a.tif", size=(2, 2), output=tmp_path / "out", place=PLACE)
    numbers = np.array([[0, objects], [1, 2]])
    decoder = SimpleNamespace(objects=[DETECTED] * objects)
    with ObjectFormat(("nothing", "cell")).open_mask(job, (2, 2), decoder) as mask:
        mask.write(numbers[:1], np.array([[True, False]]))
        mask.write(numbers[1:])
    written = tifffile.imread(tmp_path / "out.tif")
    assert written.dtype == dtype
    assert written.tolist() == [[nodata, objects], [1, 2]]


def test_probabilities_of_objects_are_written_before_the_mask_is_known(tmp_path):
    job = RasterJob(image=tmp_path / "a.tif", size=(6, 4), output=tmp_path / "out", place=PLACE)
    logits = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    expected = torch.cat([logits[:2].softmax(0), logits[2:].sigmoid()]).numpy()
    missing = np.zeros((6, 4), bool)
    missing[0, 3] = missing[4, 1] = True
    writer = ImageWriter(ObjectFormat(("nothing", "cell")), Objects(), (MASK, TABLE, PROBABILITIES))
    strips = logits.split(2, dim=1)
    writer.write(job, job.size, strips, None, None, lambda top, bottom: missing[top:bottom])
    written = tifffile.imread(job.file(PROBABILITIES))
    np.testing.assert_allclose(written, np.where(missing, np.nan, expected), rtol=1e-6)
    volume = volume_job(tmp_path, (6, 4, 5))
    logits = torch.randn(3, *volume.size, generator=torch.Generator().manual_seed(1))
    expected = torch.cat([logits[:2].softmax(0), logits[2:].sigmoid()]).numpy()
    writer = VolumeWriter(ObjectFormat(("nothing", "cell")), Objects(), (MASK, TABLE, PROBABILITIES))
    writer.write(volume, volume.size, logits.split(2, dim=1))
    written, _ = read_volume(VolumeFile((str(volume.file(PROBABILITIES)),)), "v")
    np.testing.assert_allclose(np.moveaxis(written, 3, 0), expected, rtol=1e-5)


@pytest.fixture
def placed(monkeypatch) -> list[Path]:
    """The files in the order in which they take their places."""
    files = []
    replace_file = Path.replace

    def note(source: Path, target: Path) -> Path:
        files.append(target)
        return replace_file(source, target)

    monkeypatch.setattr(Path, "replace", note)
    return files


@pytest.mark.parametrize(
    ("output_format", "task", "extensions"),
    [
        (ClassFormat(ClassMap(("a", "b"), (0, 1), None)), Classes(("a", "b")), (MASK, PROBABILITIES, UNCERTAINTY)),
        (OverlapFormat(("a", "b")), Overlapping(("a", "b")), ("a/.png", "b/.png", PROBABILITIES)),
        (ObjectFormat(("nothing", "cell")), Objects(), (MASK, TABLE, PROBABILITIES)),
    ],
    ids=["classes", "overlapping", "objects"],
)
def test_a_mask_takes_its_place_after_all_that_lies_beside_it(tmp_path, placed, output_format, task, extensions):
    image, volume = image_job(tmp_path), volume_job(tmp_path)
    logits = torch.zeros(task.outputs, *SIZE)
    ImageWriter(output_format, task, extensions).write(image, SIZE, [logits], None, None)
    assert placed[-1] == output_format.mask_file(image)
    assert sorted(placed) == sorted(output_format.file(image, extension) for extension in extensions)
    placed.clear()
    VolumeWriter(output_format, task, extensions).write(volume, volume.size, [torch.zeros(task.outputs, *volume.size)])
    assert placed[-1] == output_format.mask_file(volume)
    assert sorted(placed) == sorted(output_format.file(volume, extension) for extension in extensions)


def test_points_take_their_place_after_the_picture_of_them(tmp_path, placed):
    task = landmarks("long", "pixels")
    job = image_job(tmp_path, size=(32, 48))
    pixels = WindowedArray(np.zeros((32, 48, 3), np.uint8))
    writer = PointImageWriter(PointFormat(task), task, (MASK, OVERLAY, PROBABILITIES))
    writer.write(job, (32, 48), [peaks((16, 24), (3, 4), (3, 4), (12, 20))], pixels, None)
    assert [file.name for file in placed] == ["a.npy", "a.overlay.png", "a.csv"]


def test_the_numbers_of_many_pixels_lie_beside_the_outputs_until_they_are_written(tmp_path, monkeypatch):
    folders = []

    def open_file(dir: Path) -> BinaryIO:
        folders.append(dir)
        return TemporaryFile(dir=dir)

    monkeypatch.setattr(canvas, "IN_MEMORY", 0)
    monkeypatch.setattr(canvas, "TemporaryFile", open_file)
    output_format = ObjectFormat(("nothing", "cell"))
    image = image_job(tmp_path)
    ImageWriter(output_format, Objects(), (MASK, TABLE)).write(image, SIZE, [torch.zeros(3, *SIZE)], None, None)
    assert folders == [tmp_path / "out"]
    volume = replace(volume_job(tmp_path), output=tmp_path / "of_volumes" / "v")
    VolumeWriter(output_format, Objects(), (MASK, TABLE)).write(volume, volume.size, [torch.zeros(3, *volume.size)])
    assert folders[1:] == [tmp_path / "of_volumes"]


def test_masks_of_all_values_of_8_bits_have_16_where_there_is_no_data(tmp_path):
    job = RasterJob(image=tmp_path / "a.tif", size=(1, 256), output=tmp_path / "out", place=PLACE)
    with open_mask_raster(job, tmp_path / "out.tif", (1, 256), range(256)) as mask:
        mask.write(np.arange(256, dtype=np.uint8)[None], np.arange(256)[None] == 9)
    written = tifffile.imread(tmp_path / "out.tif")
    assert written.dtype == np.uint16
    assert written[0].tolist() == [*range(9), 65_535, *range(10, 256)]
    assert free_value(set(range(1, 256))) == 0


def test_the_mask_of_a_volume_is_no_tiff_that_lies_beside_it(tmp_path):
    job = volume_job(tmp_path)
    job.output.parent.mkdir()
    job.output.with_suffix(".tif").write_bytes(b"of an image")
    assert ObjectFormat(("nothing", "cell")).mask_file(job) == job.output.with_name("v.nii.gz")


def test_true_objects_have_the_classes_of_the_model(tmp_path):
    classes = [(1, "cell"), (2, "dust"), (255, "crowd"), (0, "nothing"), ((1, 2, 3), "color"), (7, "dirt")]
    indices = indices_of_values(classes, ("dirt", "cell"))
    assert {value: index for value, index in enumerate(indices) if index} == {1: 2, 7: 1}
    assert len(indices) == 256
    one = indices_of_values(classes, ("anything",))
    assert {value for value, index in enumerate(one) if index == 1} == {1, 2, 7}
    assert indices_of_values((), ("cell",)) == (0, 1, *[0] * 254)
    drawn = np.array([[0, 1, 2], [3, 4, 4]]), np.array([0, 1, 7, 255, 2])
    source = SimpleNamespace(render_objects=lambda: drawn)
    annotated = AnnotatedObjects(source, indices)
    objects = annotated.render()
    target = ObjectFormat(("nothing", "dirt", "cell")).reader_of(annotated).of_mask(objects, "a")
    assert np.array_equal(classes_of(target.prediction), [[0, 2, 1], [255, 0, 0]])
    assert numbers_of(objects).tolist() == [[0, 1, 2], [3, 4, 4]]
    assert classes_of(objects).tolist() == [[0, 2, 1], [255, 0, 0]]


def test_pycocotools_decodes_the_run_lengths_of_an_object():
    masks = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(0)
    for share in (0.02, 0.5, 1.0):
        picture = np.zeros((13, 17), np.uint8)
        box = rng.random((6, 8)) < share
        box[0, 0] = True
        for top, left in ((0, 0), (7, 9), (3, 5)):
            picture[:] = 0
            picture[top : top + 6, left : left + 8] = box
            encoded = run_lengths(box, (top, left), picture.shape)
            assert encoded["size"] == [13, 17]
            assert np.array_equal(masks.decode(encoded), picture)


def test_a_coco_file_lists_images_categories_and_objects(tmp_path):
    pytest.importorskip("pycocotools.mask")
    images = []
    for name, rows in (
        ("a", [(1, "cell", (0, 0, 2, 2)), (3, "dirt", (0, 3, 2, 4))]),
        ("b", [(2, "dirt", (2, 1, 3, 4))]),
        ("c", []),
    ):
        Image.fromarray(LABELS).save(tmp_path / f"{name}.png")
        images.append((f"sub/{name}.tif", tmp_path / f"{name}.png", write_table(tmp_path / f"{name}.csv", *rows)))
    write_coco(tmp_path, images, ("dirt", "cell"))
    coco = json.loads((tmp_path / "objects.json").read_text())
    assert coco["categories"] == [{"id": 1, "name": "dirt"}, {"id": 2, "name": "cell"}]
    names = [f"sub/{name}.tif" for name in "abc"]
    sizes = {"height": 3, "width": 4}
    assert coco["images"] == [{"id": number, "file_name": name, **sizes} for number, name in enumerate(names, 1)]
    listed = [(item["id"], item["image_id"], item["category_id"], item["bbox"]) for item in coco["annotations"]]
    assert listed == [(1, 1, 2, [0, 0, 2, 2]), (2, 1, 1, [3, 0, 1, 2]), (3, 2, 1, [1, 2, 3, 1])]
    assert all((item["area"], item["iscrowd"], item["score"]) == (4, 0, 0.75) for item in coco["annotations"])
    output_format = ObjectFormat(("nothing", "cell", "dirt"))
    jobs = [
        replace(image_job(tmp_path, name), output=tmp_path / name, root=tmp_path.parent) for name in ("a", "failed")
    ]
    write_table(jobs[0].file(TABLE), (1, "cell", (0, 0, 2, 2)))
    PredictionWriter(output_format, Objects(), (MASK,)).write_coco(tmp_path, jobs)
    (listed_image,) = json.loads((tmp_path / "objects.json").read_text())["images"]  # what has no mask is left out
    assert listed_image["file_name"] == f"{tmp_path.name}/a.tif"
    for row in ((1, "dust", (0, 0, 2, 2)), (1, "cell", (2, 2, 3, 4))):
        write_table(tmp_path / "c.csv", row)
        with pytest.raises(DataError, match=r"c\.csv: object 1 is not one of the mask"):
            write_coco(tmp_path, images, ("cell", "dirt"))


@pytest.mark.parametrize(
    "line",
    [
        "x,cell,4,0,0,0,0,2,2,0.5",
        "1,cell,4.5,0,0,0,0,2,2,0.5",
        "1,cell,4,0,0,a,0,2,2,0.5",
        "1,cell,4,0,0,0,b,2,2,0.5",
        "1,cell,4,0,0,0,0,c,2,0.5",
        "1,cell,4,0,0,0,0,2,2.5,0.5",
        "1,cell,4,0,0,0,0,2,2,high",
        "1,cell",
        pytest.param("1," + 200_000 * "x", id="a cell that csv refuses"),
    ],
)
def test_a_table_of_objects_that_was_changed_is_refused(tmp_path, line):
    table = write_table(tmp_path / "a.csv", (1, "cell", (0, 0, 2, 2)))
    ((row),) = list(table_rows(table, IMAGE_COLUMNS))
    assert (row["number"], row["class"], row["bottom"], row["score"]) == ("1", "cell", "2", "0.75")
    with table.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=r"a\.csv: is not as prediction wrote it"):
        list(table_rows(table, IMAGE_COLUMNS))
    for text in ("number,class\n", ""):
        table.write_text(text)
        with pytest.raises(DataError, match="expected the columns number, class, area"):
            list(table_rows(table, IMAGE_COLUMNS))


def test_cells_of_an_object_say_its_place_in_pixels_or_in_millimeters():
    detected = DetectedObject(1, 1, 10, (1.25, 2.5), (0, 1, 3, 4), 0.5, 0)
    assert image_cells(detected) == ["1.25", "2.50", "0", "1", "3", "4"]
    affine = np.array([[0, -2.0, 0, 9], [1.5, 0, 0, -4], [0, 0, 3.0, 1], [0, 0, 0, 1]])
    header = SimpleNamespace(spacing=(3.0, 1.5, 2.0), affine=affine)
    solid = detected._replace(center=(1.0, 2.0, 0.5), box=(0, 1, 0, 3, 4, 2))
    x, y, z, _ = affine @ [0.5, 2.0, 1.0, 1]
    expected = ["90", f"{x:.3f}", f"{y:.3f}", f"{z:.3f}", "0", "1", "0", "3", "4", "2"]
    assert volume_cells(solid, header) == expected
    assert volume_cells(solid._replace(size=137), header)[0] == "1233"


def landmarks(layout: str, space: str) -> Landmarks:
    names = ("1", "2", "3") if layout == "tps" else ("nose", "ear", "tail")
    return Landmarks(names=names, partners=(0, 1, 2), layout=layout, space=space)


def test_maps_of_points_keep_the_dots_in_the_name_of_their_image(tmp_path):
    job = image_job(tmp_path, name="scan.v1")
    assert PointFormat(landmarks("long", "pixels")).file(job, PROBABILITIES).name == "scan.v1.npy"


@pytest.mark.parametrize("layout", ["long", "wide", "deeplabcut", "labelme", "coco", "tps"])
def test_predicted_points_come_back_from_the_file_that_is_written_of_them(tmp_path, layout):
    task = landmarks(layout, "pixels from the bottom" if layout == "tps" else "pixels")
    output_format = PointFormat(task)
    job = image_job(tmp_path, size=(30, 40))
    prediction = np.array([[0.25, 0.75, 0.9, 0.8], [0.5, 0.1, 0.2, 0.6], [0.9, 0.4, 0.5, 0.3]])
    places = prediction[:, :2] * (30, 40) - 0.5
    positions = places[:, ::-1].copy()
    if layout == "tps":
        positions[:, 1] = 29 - positions[:, 1]
    table = output_format.table("a.tif", PredictedPoints.of(prediction), positions, (30, 40))
    assert table.states.tolist() == [[PRESENT, ABSENT, PRESENT]]
    job.output.parent.mkdir()
    output_format.write(job, table, np.zeros((4, 5, 3), np.uint8))
    assert np.asarray(Image.open(job.file(".overlay.png"))).shape == (4, 5, 3)
    again = as_prediction(read_written(job.file(output_format.extension), layout).with_names(task.names), job)
    assert again[:, 2:] == pytest.approx(prediction[:, [2, 2]], abs=1e-4)
    present = again[:, 2] >= 0.5
    assert present.tolist() == [True, False, True]
    np.testing.assert_allclose(again[present, :2], prediction[present, :2], atol=1e-3)
    with pytest.raises(SettingsError, match=r"the points of this model are \.\w+ files; give a folder"):
        output_format.for_file(tmp_path / "a.csv")


def test_written_points_without_a_presence_are_there_or_not(tmp_path):
    states = np.array([[PRESENT, ABSENT, PRESENT]])
    table = PointTable("long", ("nose", "ear", "tail"), ("a.tif",), np.ones((1, 3, 2)), states, ("a.csv",))
    assert as_prediction(table, image_job(tmp_path))[:, 2].tolist() == [1, 0, 1]


@pytest.mark.parametrize(("layout", "space"), [("markups", "LPS"), ("fcsv", "RAS"), ("nnlandmark", "pixels")])
def test_predicted_points_of_a_volume_come_back_from_their_file(tmp_path, layout, space):
    task = landmarks(layout, space)
    output_format = PointFormat(task)
    job = volume_job(tmp_path)
    prediction = np.array([[0.5, 0.25, 0.7, 0.9, 0.8], [0.1, 0.9, 0.5, 0.6, 0.6], [0.2, 0.3, 0.4, 0.1, 0.1]])
    header = read_volume_header(job.volume, "v")
    places = prediction[:, :3] * np.array(job.size) - 0.5
    table = output_format.table("v.nii", PredictedPoints.of(prediction), from_voxels(places, space, header))
    job.output.parent.mkdir()
    output_format.write(job, table, None)
    again = as_prediction(read_written(job.file(output_format.extension), layout).with_names(task.names), job)
    present = prediction[:, 3] >= 0.5
    assert ((again[:, 3] >= 0.5) == present).all()
    np.testing.assert_allclose(
        again[present, :3], prediction[present, :3], atol=0.2 / 3 if layout == "nnlandmark" else 1e-3
    )


def peaks(size: tuple[int, ...], *places: tuple[int, ...] | None) -> torch.Tensor:
    """Maps (K, *size) with a Gaussian of two pixels at one place each, or nowhere."""
    maps = torch.full((len(places), *size), -12.0)
    pixels = torch.stack(torch.meshgrid(*map(torch.arange, size), indexing="ij"), dim=-1)
    for single_map, place in zip(maps, places, strict=True):
        if place is not None:
            squares = (pixels - torch.tensor(place)).square().sum(dim=-1)
            single_map.copy_((9 - squares / 8).clamp_min(-12))
    return maps


def test_the_points_of_an_image_are_drawn_where_they_are_found(tmp_path):
    task = landmarks("long", "pixels")
    pixels = np.random.default_rng(0).integers(0, 255, (48, 32, 3)).astype(np.uint8)
    taken = []
    maps = peaks((24, 16), (3, 4), None, (20, 12))
    writer = PointImageWriter(PointFormat(task), task, (MASK, OVERLAY, PROBABILITIES))
    job = image_job(tmp_path, size=(48, 32))
    writer.write(job, (48, 32), maps.split(5, dim=1), WindowedArray(pixels), SimpleNamespace(add=taken.append))
    positions = np.array([[6.5, 8.5], [0.0, 0.0], [40.5, 24.5]])  # the centers of pixels twice as large
    is_found = np.array([True, False, True])
    assert np.array_equal(np.asarray(Image.open(job.file(OVERLAY))), render_points(pixels, positions, is_found))
    np.testing.assert_allclose(np.load(job.file(PROBABILITIES)), maps.sigmoid(), rtol=1e-6)
    (prediction,) = taken
    np.testing.assert_allclose(prediction[is_found, :2] * (48, 32) - 0.5, positions[is_found], atol=1e-4)
    table = read_written(job.file(".csv"), "long")
    np.testing.assert_allclose(table.positions[0, is_found], positions[is_found][:, ::-1], atol=1e-3)
    assert table.states.tolist() == [[PRESENT, ABSENT, PRESENT]]
    assert table.images == ("a.tif",)
    np.testing.assert_allclose(table.confidence[0], prediction[:, 3], atol=1e-6)
    np.testing.assert_allclose(table.presence[0], prediction[:, 2], atol=1e-6)
    plain = PointImageWriter(PointFormat(task), task, (MASK,))
    plain.write(replace(job, output=tmp_path / "out" / "b"), (48, 32), [maps], None, None)
    assert sorted(path.name for path in (tmp_path / "out").glob("b*")) == ["b.csv"]


def test_rows_of_points_are_counted_from_the_bottom_where_the_format_does(tmp_path):
    task = landmarks("tps", "pixels from the bottom")
    job = image_job(tmp_path, "sub/a", size=(32, 48))
    PointImageWriter(PointFormat(task), task, (MASK,)).write(
        job, (32, 48), [peaks((16, 24), (3, 4), (3, 4), (12, 20))], None, None
    )
    table = read_written(job.file(".tps"), "tps").with_names(task.names)
    np.testing.assert_allclose(table.positions[0], [[8.5, 24.5], [8.5, 24.5], [40.5, 6.5]], atol=1e-3)


@pytest.mark.parametrize("layout", ["labelme", "coco"])
def test_files_of_points_say_the_size_of_the_image(tmp_path, layout):
    task = landmarks(layout, "pixels")
    job = image_job(tmp_path, size=(30, 40))
    PointImageWriter(PointFormat(task), task, (MASK,)).write(job, (30, 40), [torch.zeros(3, 15, 20)], None, None)
    written = json.loads(job.file(".json").read_text())
    if layout == "coco":
        (entry,) = written["images"]
        assert (entry["height"], entry["width"]) == (30, 40)
    else:
        assert (written["imageHeight"], written["imageWidth"]) == (30, 40)


def test_the_points_of_a_volume_are_drawn_on_planes_of_its_spacing(tmp_path):
    task = landmarks("markups", "LPS")
    job = replace(volume_job(tmp_path, (6, 8, 10)), output=tmp_path / "out" / "sub" / "v")
    maps = peaks(job.size, (1, 4, 5), (4, 2, 6), None)
    writer = PointVolumeWriter(PointFormat(task), task, (MASK, OVERLAY))
    prediction = writer.write(job, job.size, maps.split(4, dim=1))
    header = read_volume_header(job.volume, "v")
    positions = PredictedPoints.of(prediction).positions(job.size)
    np.testing.assert_allclose(positions[:2], [[1, 4, 5], [4, 2, 6]], atol=1e-3)
    expected = render_volume_points(
        np.zeros((*job.size, 1), np.float32), header.spacing, positions, np.array([True, True, False])
    )
    assert np.array_equal(np.asarray(Image.open(job.file(OVERLAY))), expected)
    written = read_written(job.file(PointFormat(task).extension), "markups").with_names(task.names)
    np.testing.assert_allclose(written.positions[0, :2], from_voxels(positions, "LPS", header)[:2], atol=1e-3)


def test_the_legend_of_points_has_a_square_of_each_color():
    output_format = PointFormat(landmarks("long", "pixels"))
    picture = np.asarray(output_format.legend())
    line = len(picture) // 4
    squares = [picture[number * line + line // 2, line // 2].tolist() for number in range(1, 4)]
    assert squares == output_format.colors.tolist()


def test_maps_of_a_volume_are_an_array_that_a_second_call_finds(tmp_path):
    task = landmarks("markups", "LPS")
    job = volume_job(tmp_path)
    writer = PredictionWriter(PointFormat(task), task, (MASK, PROBABILITIES))
    maps = torch.zeros(3, *job.size)
    maps[:, 1, 1, 1] = 9
    assert not writer.is_finished(job)
    writer.volumes.write(job, job.size, [maps])
    assert np.load(job.output.with_name(job.output.name + ".npy")).shape == maps.shape
    assert not job.file(OVERLAY).exists()
    assert writer.is_finished(job)


def test_points_of_all_images_stand_in_one_table_where_the_format_holds_several(tmp_path):
    output_format = PointFormat(landmarks("long", "pixels"))
    jobs = [image_job(tmp_path, name, (30, 40)) for name in ("a", "sub/b", "c")]
    for number, job in enumerate(jobs[:2]):
        job.output.parent.mkdir(parents=True, exist_ok=True)
        points = PredictedPoints.of(np.full((3, 4), 0.5 + number / 4))
        output_format.write(
            job, output_format.table(job.image.name, points, np.full((3, 2), 7.0 + number), (30, 40)), None
        )
    first = jobs[0].file(output_format.extension)
    lines = [line for line in first.read_text().splitlines() if ",ear," not in line]
    first.write_text("\n".join(lines))
    output_format.write_joined(tmp_path / "out", jobs)  # the third one failed
    table = read_written(tmp_path / "out" / "points.csv", "long")
    assert (table.images, table.names) == (("a.tif", "sub/b.tif"), ("nose", "ear", "tail"))
    assert table.positions[:, 0].tolist() == table.positions[:, 2].tolist() == [[7, 7], [8, 8]]
    (tmp_path / "out" / "points.csv").unlink()
    output_format.write_joined(tmp_path / "out", jobs[:1])
    output_format.write_joined(tmp_path / "out", [jobs[2], replace(jobs[2], page=1)])  # both failed
    assert not (tmp_path / "out" / "points.csv").exists()
    output_format.write_joined(tmp_path / "out", [jobs[0], jobs[2]])  # one of two failed
    assert read_written(tmp_path / "out" / "points.csv", "long").images == ("a.tif",)
    pages = [replace(jobs[0], page=page, output=jobs[0].output.with_name(f"a_{page}")) for page in (0, 1)]
    for job in pages:
        output_format.write(job, output_format.table(job.image.name, points, np.full((3, 2), 7.0), (30, 40)), None)
    output_format.write_joined(tmp_path / "out", pages)
    assert read_written(tmp_path / "out" / "points.csv", "long").images == ("a.tif", "a.tif page 2")
    (tmp_path / "out" / "points.csv").unlink()
    assert FORMATS["labelme"].holds_several is False
    labelme = PointFormat(landmarks("labelme", "pixels"))
    for job in jobs[:2]:
        labelme.write(job, labelme.table(job.image.name, points, np.full((3, 2), 7.0), (30, 40)), None)
    labelme.write_joined(tmp_path / "out", jobs)
    assert not (tmp_path / "out" / "points.json").exists()


def test_true_points_are_those_of_the_path_that_agrees_most(tmp_path, monkeypatch):
    images = ("day1/a.png", "day2\\a.png", "b.jpg", "case_7", "case_8_0000")
    table = PointTable("long", ("nose",), images, np.zeros((5, 1, 2)), np.full((5, 1), PRESENT), ("t.csv",) * 5)
    (tmp_path / "t.csv").write_bytes(content(table))
    (tmp_path / "day2").mkdir()
    paths = ["day2/a.png", "day1/a.png", "day3/a.png", "other/b.tif", "case_7_0000.nii.gz", "case_8_0000.nii.gz"]
    jobs = [replace(image_job(tmp_path), image=tmp_path / path) for path in paths]
    task = replace(landmarks("long", "pixels"), names=("nose", "tail"))
    with_rows = with_truths(jobs, tmp_path / "t.csv", task)
    assert [job.truth for job in with_rows] == [(tmp_path / "t.csv", row) for row in (1, 0, 0, 2, 3, 4)]
    monkeypatch.chdir(tmp_path / "day2")  # where the parts of a path are not all in its name
    (job,) = with_truths([replace(jobs[0], image=Path("a.png"))], tmp_path / "t.csv", task)
    assert job.truth == (tmp_path / "t.csv", 1)
    images = ("day1/b/a.png", "c/a.png")
    table = PointTable("long", ("nose",), images, np.zeros((2, 1, 2)), np.full((2, 1), PRESENT), ("u.csv",) * 2)
    (tmp_path / "u.csv").write_bytes(content(table))
    (job,) = with_truths([replace(jobs[0], image=tmp_path / "day1" / "c" / "a.png")], tmp_path / "u.csv", task)
    assert job.truth == (tmp_path / "u.csv", 1)
    with pytest.raises(DataError, match=r"lists no points of 2 inputs, the first is .*/x\.png$"):
        with_truths(
            [*jobs, *(replace(jobs[0], image=tmp_path / name) for name in ("x.png", "y.png"))],
            tmp_path / "t.csv",
            task,
        )
    with pytest.raises(DataError, match=r"t\.csv: has none of the model's points tail, ear"):
        with_truths(jobs, tmp_path / "t.csv", replace(task, names=("tail", "ear")))


def test_points_and_masks_have_scorers_of_their_own():
    task = landmarks("long", "pixels")
    of_points = PointScorer(task, ".csv")
    assert new_image_scorer(PointFormat(task), task, boundary=False) == of_points
    assert new_volume_scorer(PointFormat(task), task, surfaces=False) == of_points
    output_format, objects = ObjectFormat(("nothing", "cell")), Objects()
    for flag in (False, True):
        assert new_image_scorer(output_format, objects, boundary=flag) == ImageScorer(output_format, objects, flag)
        assert new_volume_scorer(output_format, objects, surfaces=flag) == VolumeScorer(output_format, objects, flag)


def test_an_empty_cell_of_true_points_means_what_it_meant_in_training(tmp_path):
    (tmp_path / "t.csv").write_text("image,landmark,x,y\na.tif,nose,3,4\na.tif,ear,,\n")
    task = replace(landmarks("long", "pixels"), names=("ear", "nose"))
    for absent, state in (("not-there", ABSENT), ("unknown", UNKNOWN)):
        truth = true_points(tmp_path / "t.csv", replace(task, absent=absent))
        assert truth.states.tolist() == [[state, PRESENT]]


def test_what_is_left_out_of_objects_is_part_of_what_masks_depend_on(tmp_path):
    flags = {"model": "m", "ensemble": [], "scale": 0.5, "tta": True}
    plain = provenance_of(Namespace(**flags, min_size=None, drop_border=False))
    assert plain == {"models": {"m": None}, "scale": 0.5, "tta": True, "complete": True}
    changed = provenance_of(Namespace(**flags, min_size=0, drop_border=True))
    assert changed == plain | {"min_size": 0, "drop_border": True}


def test_outputs_lie_below_the_folder_of_all_in_that_of_their_class():
    job = ImageJob(image=Path("in/x/a.tif"), size=(4, 5), output=Path("out/x/a"), root=Path("out"), page=1)
    assert str(job.file("cell/.png")) == "out/cell/x/a.png"
    assert str(job.file(".png")) == "out/x/a.png"
    assert job.relative_name == "x/a.tif page 2"
    assert replace(job, page=0).relative_name == "x/a.tif"
    alone = replace(job, root=None)
    assert str(alone.file("cell/.png")) == "out/x/cell/a.png"
    assert alone.relative_name == "a.tif page 2"


def test_written_points_are_scored_as_predicted_ones_and_only_present_ones_have_an_error(tmp_path):
    task = landmarks("long", "pixels")
    output_format = PointFormat(task)
    states = np.array([[PRESENT, ABSENT, UNKNOWN]])
    places = np.array([np.full((3, 2), 2.0), np.full((3, 2), 10.0)])
    truth = PointTable("long", task.names, ("b.tif", "a.tif"), places, np.repeat(states, 2, axis=0), ("t.csv",) * 2)
    (tmp_path / "t.csv").write_bytes(content(truth))
    (job,) = with_truths([image_job(tmp_path, size=(30, 40))], tmp_path / "t.csv", task)
    scorer = PointScorer(task, ".csv")
    with pytest.raises(ScoreError):  # nothing is written
        scorer.score(job)
    positions = np.array([[13.0, 14.0], [1.0, 2.0], [3.0, 4.0]])
    places = (positions[:, ::-1] + 0.5) / (30, 40)
    prediction = np.column_stack([places, [0.9, 0.8, 0.7], [0.6, 0.6, 0.6]])
    job.output.parent.mkdir()
    output_format.write(job, output_format.table("a.tif", PredictedPoints.of(prediction), positions, (30, 40)), None)
    score = scorer.score(job)
    entry = score.to_json("a.tif")
    assert entry["image"] == "a.tif"
    assert entry["errors"] == {"nose": pytest.approx(5), "ear": None, "tail": None}
    assert entry["mean_radial_error"] == pytest.approx(5)
    assert entry["closeness"] == pytest.approx((1 - 5 / 50 + 0) / 2)  # the absent one is said to be there
    np.testing.assert_allclose(score.scores.by_image, scorer.score_mask(job, prediction).scores.by_image, atol=1e-3)
    header, *lines = job.file(".csv").read_text().splitlines()
    job.file(".csv").write_text("\n".join([header, *lines[::-1], ""]))  # points in another order
    assert scorer.score(job).to_json("a.tif") == entry
    job.file(".csv").write_text("damaged\n")
    with pytest.raises(ScoreError):
        scorer.score(job)
