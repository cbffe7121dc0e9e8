"""The kinds of files that are fuzzed: valid ones, the changes that are made to them, and how the scripts read them.

A reader gets a folder that holds one changed file (among good ones, where a data set needs them), and may end in a
UserError or in a value.
"""

import base64
import gzip
import io
import json
import random
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path

import nibabel
import numpy as np
import tifffile
import torch
from PIL import Image
from support.in_process import parsed
from support.pytorch_unet import pytorch_unet_checkpoint
from support.rasters import feature, square, write_raster

from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.analysis.inspect_images import inspect_image
from data_utils.analysis.inspect_points import inspect_points, inspect_volume_points
from data_utils.analysis.inspect_volumes import inspect_volume
from data_utils.class_names import parse_classes
from data_utils.config import DataConfig
from data_utils.image_io.formats import BandSource, PageFile, VolumeFile
from data_utils.image_io.geotiff_writer import GeoTiffWriter
from data_utils.image_io.outlines import Outliner
from data_utils.image_io.placed_masks import Grid, on_grid
from data_utils.image_io.places import Crs, Place
from data_utils.image_io.reader import decode_image, read_image, read_mask
from data_utils.image_io.well_known_binary import well_known_binary
from data_utils.image_io.windowed import open_windowed_file, strips
from data_utils.loading.image_input import ImageInput
from data_utils.loading.volume_input import VolumeInput
from data_utils.sources.blocks import describe_neighbors
from data_utils.sources.load import load_records
from data_utils.sources.points import files
from data_utils.sources.points.table import PointTable
from data_utils.targets.find import find_task
from data_utils.targets.objects import ObjectReader, object_shapes
from inference.inputs import InputRules, find_jobs
from inference.models import load_network
from inference.outputs.coco import write_coco
from inference.outputs.jobs import ImageJob, RasterJob
from inference.outputs.object_tables import IMAGE_COLUMNS
from inference.outputs.objects import ObjectFormat
from inference.outputs.polygons import area_polygons
from inference.page import page_job
from inference.provenance import record_provenance
from inference.scoring.truth import ImageScorer
from inference.true_masks import TruthFolder
from runtime.cache import load_or_compute
from runtime.errors import DataError
from tasks.classes import Classes
from tasks.objects import Objects, ObjectTarget
from tasks.points import ABSENT, PRESENT, UNKNOWN
from tests.fuzz import mutations
from train_utils.checkpoints.find import find_checkpoint, fingerprint, peek
from train_utils.memory.limit import read_memory_limit
from train_utils.monitoring.run_log import _lines_up_to
from train_utils.reporting.comparison.differences import compare_recipes
from train_utils.reporting.comparison.recipes import differing_settings, group_runs
from train_utils.reporting.comparison.recorded_runs import read_runs
from train_utils.reporting.comparison.tables import terminal_text
from train_utils.settings.encoder import load_encoder, read_normalization
from unet import Preprocess, UNet, UNetConfig

Change = Callable[[random.Random, bytes], bytes]
SIZE = (12, 16)
PREPROCESS = Preprocess(scale=0.5, spacing=(1.0, 1.0, 1.0))


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Args:
        files: valid contents, by name of the file.
        changes: what is done to one of them.
        read: reads a folder that holds the file, whose path is given.
        beside: other files of the folder, the same for all inputs.
    """

    files: dict[str, bytes]
    changes: tuple[Change, ...]
    read: Callable[[Path], object]
    beside: dict[str, bytes] = field(default_factory=dict)


def picture(kind: str, mode: str = "RGB", **options) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def array(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def tiff(values: np.ndarray, **options) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, values, **options)
    return file.getvalue()


def read_picture(path: Path) -> None:
    """Check it, decode it for training as image and as mask, read it in windows, and find it as predict.py does."""
    source = str(path)
    inspect_image({"image": source, "target": source, "name": path.name})
    inspect_image({"image": path.read_bytes(), "target": source, "name": path.name})
    with suppress(DataError):
        decode_image(source, path.name, draft_for=PREPROCESS)
    with suppress(DataError):
        ImageInput.read(source, PREPROCESS, 3, path.name).whole()
    with suppress(DataError), open_windowed_file(path) as picture:
        for _, rows in strips(picture):
            read_image(rows, path.name)
    find_jobs([source], path.parent / "out", [".png"])
    page_job(path)


def read_raster(path: Path) -> None:
    """Read it as a picture, with all bands and some, and as a mask on another grid."""
    read_picture(path)
    source = BandSource((str(path),), ("2", "B1"))
    with suppress(DataError), open_windowed_file(source) as picture:
        for _, rows in strips(picture):
            read_image(rows, path.name)
    for job in find_jobs([str(path)], path.parent / "out", [".png"], InputRules(bands=("1",), keeps_place=True)):
        if isinstance(job, RasterJob):
            write_outputs(job)
    grid = Grid(Place((10.0, 0.0, 500_000.0, 0.0, -10.0, 5_000_000.0), Crs(32633, ()), ()), SIZE)
    with suppress(DataError):
        read_mask(on_grid(str(path), grid, path.name), path.name)


def write_outputs(job: RasterJob) -> None:
    """Write a mask and polygons where an image says that it lies."""
    mask = np.eye(4, 5, dtype=np.uint8)
    writer = GeoTiffWriter(io.BytesIO(), (4, 5), job.place)
    writer.write(mask[None])
    writer.finish()
    outliner = Outliner(5)
    for areas in (*outliner.add(mask), *outliner.finish()):
        for rings in area_polygons(areas, job.place):
            well_known_binary(list(rings))


def read_polygons(path: Path) -> None:
    read_config(DataConfig(str(path.parent), val_fraction=0.5, label_column="kind"))


def read_blocks(path: Path) -> None:
    train, val = load_records(DataConfig(str(path.parent.parent), val_blocks=8))
    for record in islice(chain(val, train), 3):  # a header may claim thousands of blocks
        inspect_image(record)
        with suppress(DataError):
            read_image(record["image"])
    describe_neighbors(val, val)


def read_volume_file(path: Path) -> None:
    """Check it as image and label, and resample it for the network."""
    file = VolumeFile((str(path),), (1.0, 2.0, 2.0))
    inspect_volume({"image": file, "target": file, "name": path.name})
    find_jobs([str(path)], path.parent / "out", [".nii.gz"], InputRules(stack_spacing=(1.0, 1.0, 1.0)))
    VolumeInput.read(file, PREPROCESS, 1, path.name).whole()


def read_data_set(path: Path) -> None:
    """Load both splits, and read each record's image and mask."""
    read_config(DataConfig(str(path.parent), val_fraction=0.5, allow_unpaired=True))


def read_config(config: DataConfig) -> None:
    for records in load_records(config):
        str(records.annotations)
        str(records.digest)
        for record in records:
            if records.dims == 3:
                inspect_volume(record)
            else:
                inspect_image(record)
                with suppress(DataError):
                    decode_image(record["image"], record["name"])


def read_points(path: Path) -> None:
    """Read the file for itself, and as that of a data set: the points of each record, of images and volumes."""
    with suppress(DataError):
        table = files.read(path)
        if table is not None:
            files.content(table)
    config = DataConfig(str(path.parent), val_fraction=0.5, allow_unpaired=True, task="landmarks")
    for records in load_records(config):
        str(records.digest)
        for record in records:
            if records.dims == 3:
                inspect_volume_points(record)
            else:
                inspect_points(record)


def read_stream(path: Path) -> None:
    read_config(DataConfig(str(path), val_fraction=0.5, streaming=True))


def read_single_stream(path: Path) -> None:
    """One file has nothing to hold out: it is training and validation split."""
    shutil.copy(path, path.with_name("train-0" + path.suffix))
    shutil.copy(path, path.with_name("val-0" + path.suffix))
    path.unlink()
    read_config(DataConfig(str(path.parent), streaming=True))


def read_label_table(path: Path) -> None:
    """What is known of the data set beside the table, with the classes that each image is labeled for."""
    load_dataset_info(DataConfig(str(path.parent), val_fraction=0.5))


def read_classes(path: Path) -> None:
    parse_classes(str(path))


def read_model(path: Path) -> None:
    """Load the model, and compute a picture."""
    source = path if path.suffix in (".onnx", ".pth") else path.parent
    network = load_network(source)
    config = network.config
    if config.in_channels <= 8 and config.base_channels <= 64 and config.depth <= 6:
        sides = (16,) * config.dims
        with torch.inference_mode(), suppress(*getattr(network, "errors", ())):
            network(torch.zeros(1, config.in_channels, *sides))


def read_checkpoint(path: Path) -> None:
    """Find the checkpoint that a run goes on from; changes of state.json are in the manifest."""
    folder = path.parent
    if path.name == "state.json":
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["state.json"] = fingerprint(path)
        (folder / "manifest.json").write_text(json.dumps(manifest))
    checkpoint = folder.with_name("step-00000002")
    shutil.rmtree(checkpoint, ignore_errors=True)
    folder.rename(checkpoint)
    try:
        peek(checkpoint)
        find_checkpoint("auto", checkpoint.parent)
    finally:
        checkpoint.rename(folder)


def read_run(path: Path) -> None:
    """Read what a run left: memory.json, metrics.jsonl, predict.json, run.json."""
    if path.name == "memory.json":
        read_memory_limit(path.parent)
    elif path.name == "metrics.jsonl":
        _lines_up_to(path, 2)
    elif path.name == "predict.json":
        record_provenance(path.parent, {"models": {"a": "b"}, "scale": None, "tta": False, "complete": True}, False)
    else:
        with suppress(SystemExit):
            parsed("--like", str(path))


def read_compared_runs(path: Path) -> None:
    """Compare a run with itself, as compare.py does."""
    runs, _ = read_runs([path.parent])
    recipes = group_runs([*runs, *runs])
    compare_recipes(recipes)
    terminal_text(recipes, differing_settings(recipes))


def read_list(path: Path) -> None:
    """Leave out the images of a list."""
    load_records(DataConfig(str(path.parent), val_fraction=0.5, exclude=str(path)))


def read_encoder(path: Path) -> None:
    if path.name == "preprocessor_config.json":
        read_normalization(str(path.parent), "resnet")
    else:
        load_encoder(str(path.parent), pretrained=False)


def read_cache(path: Path) -> None:
    folder = path.parent / "unet-accelerate"
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder / "key.json")
    assert load_or_compute("key", lambda: [1, 2]) == [1, 2]


def rasters(scratch: Path) -> dict[str, bytes]:
    """TIFFs with a place, of several bands."""
    bands = np.random.default_rng(0).integers(0, 3, (5, *SIZE), dtype=np.uint16)
    tiles = {"tiled": True, "blockxsize": 16, "blockysize": 16, "compress": "deflate"}
    paths = [
        write_raster(scratch / "a.tif", bands, nodata=0, names=("B1", "B2", "B3", "B4", "B5")),
        write_raster(scratch / "b.tif", bands[:4].astype(np.uint8), photometric="rgb", alpha="yes", **tiles),
        write_raster(scratch / "c.tif", bands[:1].astype(np.float32), nodata=float("nan"), **tiles, BIGTIFF="YES"),
        write_raster(scratch / "d.tif", bands[:2], interleave="band", **tiles),
    ]
    return {path.name: path.read_bytes() for path in paths}


def geopackage(scratch: Path) -> bytes:
    """Polygons of two classes."""
    from pyogrio.raw import write

    rings = [np.array(square(*box)) for box in ((1, 1, 5), (4, 4, 30))]
    geometries = np.array([well_known_binary([ring]) for ring in rings], object)
    labels = np.array(["wood", "field"], object)
    path = scratch / "areas.gpkg"
    write(str(path), geometries, [labels], ["kind"], driver="GPKG", geometry_type="Polygon", crs="EPSG:32633")
    return path.read_bytes()


def polygons_in_the_world() -> bytes:
    features = [feature(square(1, 1, 5), square(2, 2, 2), kind="wood"), feature(square(4, 4, 30), kind=3)]
    features[1]["geometry"] = {"type": "MultiPolygon", "coordinates": [features[1]["geometry"]["coordinates"]]}
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::32633"}}
    return json.dumps({"type": "FeatureCollection", "crs": crs, "features": features}).encode()


def coco() -> bytes:
    images = [{"id": n, "file_name": f"{n}.png", "height": SIZE[0], "width": SIZE[1]} for n in range(3)]
    polygon = [2, 2, 12, 2, 12, 10]
    annotations = [
        {"id": 1, "image_id": 0, "category_id": 1, "segmentation": [polygon], "iscrowd": 0},
        {"id": 2, "image_id": 1, "category_id": 2, "segmentation": {"size": list(SIZE), "counts": [100, 50, 42]}},
        {"id": 3, "image_id": 2, "category_id": 1, "segmentation": {"size": list(SIZE), "counts": "T3b0R3"}},
    ]
    categories = [{"id": 1, "name": "cell", "supercategory": "x"}, {"id": 2, "name": "dog"}]
    return json.dumps({"images": images, "annotations": annotations, "categories": categories}).encode()


def labelme() -> bytes:
    stamp = base64.b64encode(picture("png", "1")).decode()
    shapes = [
        {"label": "cell", "points": [[1, 1], [9, 1], [9, 9]], "shape_type": "polygon", "group_id": None},
        {"label": "cell", "points": [[1, 1], [9, 9]], "shape_type": "rectangle"},
        {"label": "dog", "points": [[5, 5], [9, 9]], "shape_type": "circle", "group_id": 3},
        {"label": "dog", "points": [[5, 5], [9, 9], [3, 4]], "shape_type": "linestrip"},
        {"label": "dog", "points": [[2, 2], [9, 9]], "shape_type": "mask", "mask": stamp},
    ]
    content = {"imagePath": "0.png", "imageData": None, "imageHeight": SIZE[0], "imageWidth": SIZE[1]}
    return json.dumps(content | {"shapes": shapes}).encode()


def tables_of_points() -> dict[str, bytes]:
    """The points of 0.png, 1.png and 2.png in each format of several images."""
    states = np.array([[PRESENT, PRESENT], [PRESENT, ABSENT], [UNKNOWN, PRESENT]])
    positions = np.random.default_rng(0).uniform(0, 11, (3, 2, 2)).round(2)
    table = PointTable("long", ("1", "2"), ("0.png", "1.png", "2.png"), positions, states, ("",) * 3)
    contents = {}
    for layout, name in (("long", "a.csv"), ("wide", "b.csv"), ("deeplabcut", "c.csv"), ("tps", "d.tps")):
        contents[name] = files.content(replace(table, layout=layout))
    predicted = replace(table, layout="tps", presence=positions[:, :, 0] / 12, confidence=positions[:, :, 1] / 12)
    contents["e.tps"] = files.content(predicted)
    sizes = np.array([SIZE] * 3)
    contents["annotations.json"] = files.content(replace(predicted, layout="coco", sizes=sizes))
    contents["0.json"] = files.content(replace(predicted.rows([0]), layout="labelme", sizes=sizes[:1]))
    return contents


def points_of_a_volume() -> dict[str, bytes]:
    """The points of `case` in each format."""
    positions = np.array([[[1.5, 2.0, 3.0], [4.0, 3.0, 1.25]]])
    states = np.array([[PRESENT, ABSENT]])
    table = PointTable("markups", ("1", "2"), ("case",), positions, states, ("",), "LPS")
    names = {"markups": "case.mrk.json", "fcsv": "case.fcsv", "nnlandmark": "all_landmarks_voxel.json"}
    contents = {name: files.content(replace(table, layout=layout)) for layout, name in names.items()}
    predicted = replace(table, layout="nnlandmark", presence=np.array([[0.5, 0.25]]), confidence=np.ones((1, 2)))
    return contents | {"points.json": files.content(predicted)}


def volume(kind: str, scratch: Path) -> bytes:
    voxels = np.random.default_rng(0).integers(0, 3, (5, 6, 7), dtype=np.uint8)
    if kind in (".nii", ".nii.gz"):
        image = nibabel.Nifti1Image(voxels, np.diag([2.0, 2.0, 1.0, 1.0])).to_bytes()
        return image if kind == ".nii" else gzip.compress(image)
    if kind == ".npy":
        return array(voxels)
    if kind == ".tif":
        return tiff(voxels, photometric="minisblack")
    import SimpleITK

    path = scratch / f"seed{kind}"
    image = SimpleITK.GetImageFromArray(voxels)
    image.SetSpacing((1.0, 2.0, 3.0))
    SimpleITK.WriteImage(image, str(path), useCompression=kind == ".nrrd")
    return path.read_bytes()


def model_folder(folder: Path, **settings) -> dict[str, bytes]:
    preprocess = Preprocess(scale=0.5, mean=(90.0,) * 3, std=(50.0,) * 3, class_names=("a", "b"), class_values=(0, 255))
    UNet(UNetConfig(3, 2, base_channels=2, depth=2, preprocess=preprocess, **settings)).save_pretrained(folder)
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in (("a.image.png", picture("png")), ("a.mask.png", picture("png", "1"))):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def parquet() -> bytes:
    import pyarrow
    from pyarrow.parquet import write_table

    file = io.BytesIO()
    rows = [{"bytes": picture("png"), "path": "a.png"}, {"bytes": picture("png"), "path": None}]
    write_table(pyarrow.table({"image": rows, "mask": rows}), file)
    return file.getvalue()


def run_folder(folder: Path) -> dict[str, bytes]:
    """What a run leaves that other runs read."""
    content = {"micro_batch_size": 4, "activation_checkpointing": False}
    lines = [json.dumps({"step": step, "epoch": 0.5, "train/loss": 0.25, "eval/loss": None}) for step in (1, 2, 3)]
    record = {"models": {"runs/x": "0123abcd"}, "scale": None, "tta": False, "complete": True}
    run = json.loads((folder / "run.json").read_text())
    return {
        "memory.json": json.dumps(content).encode(),
        "metrics.jsonl": "\n".join([*lines, ""]).encode(),
        "predict.json": json.dumps(record).encode(),
        "run.json": json.dumps(run).encode(),
    }


def make_kinds(scratch: Path, stored: Path) -> dict[str, Kind]:
    """All kinds by name.

    Args:
        scratch: an empty folder for files that libraries write.
        stored: the folder tests/data.
    """
    grey = np.random.default_rng(0).integers(0, 3, SIZE, dtype=np.uint8)
    color = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    images = {f"images/{n}.png": picture("png") for n in range(4)}
    flat = {f"{n}.png": picture("png") for n in range(3)}
    checkpoint = {file.name: file.read_bytes() for file in (stored / "run/checkpoints/step-00000002").iterdir()}
    onnx = (stored / "models" / "images.onnx").read_bytes()
    encoder = {file.name: file.read_bytes() for file in (stored / "models" / "encoder").iterdir()}
    backbone = json.dumps(json.loads(encoder["config.json"])["encoder"]).encode()
    model = model_folder(scratch / "model")
    volume_model = model_folder(scratch / "volumes", dims=3)
    weights = pytorch_unet_checkpoint(2, depth=2)
    in_bytes = mutations.change_bytes
    in_json = mutations.change_json
    in_lines = mutations.change_lines
    pictures = {
        "a.jpg": picture("jpeg"),
        "b.jpg": picture("jpeg", "CMYK", progressive=True),
        "c.gif": picture("gif", "P"),
        "d.bmp": picture("bmp"),
        "e.tga": picture("tga"),
        "f.ppm": picture("ppm"),
        "g.webp": picture("webp", lossless=True),
        "h.jp2": picture("jpeg2000"),
        "i.npy": array(color),
        "j.npy": array(grey.astype(np.float64)),
    }
    pngs = {"a.png": picture("png"), "b.png": picture("png", "P"), "c.png": picture("png", "1")}
    pngs["d.png"] = picture("png", "I;16")
    tiffs = {
        "a.tif": picture("tiff"),
        "b.tif": picture("tiff", compression="tiff_lzw"),
        "c.tif": tiff(color, photometric="rgb", tile=(16, 16), compression="zlib"),
        "d.tif": tiff(grey.astype(np.float32), photometric="minisblack"),
        "e.tif": tiff(np.stack([grey] * 3), photometric="minisblack", bigtiff=True),
    }
    masks = {"masks/0.png": picture("png", "1"), **{f"masks/{n}.png": picture("png", "1") for n in range(1, 4)}}
    yolo_lines = b"0 0.1 0.1 0.5 0.1 0.5 0.5\n1 0.2 0.2 0.7 0.2 0.7 0.9 0.1 0.3\n"
    yolo = {"images/train/0.png": picture("png"), "images/train/1.png": picture("png")}
    yolo["labels/train/0.txt"] = yolo_lines
    yolo["data.yaml"] = b"path: .\ntrain: images/train\nval: images/train\nnames:\n  0: cell\n  1: dog\n"
    voc = {f"JPEGImages/{n}.png": picture("png") for n in range(3)}
    voc |= {f"SegmentationClass/{n}.png": picture("png", "P") for n in range(3)}
    voc["labelmap.txt"] = b"# label:color_rgb:parts:actions\nbackground:0,0,0::\ncell:128,0,0::\ndog:0,128,0::\n"
    voc["ImageSets/Segmentation/train.txt"] = b"0\n1\n2\n"
    stack = volume(".nii.gz", scratch)
    decathlon = {f"{folder}/a{n}.nii.gz": stack for folder in ("imagesTr", "labelsTr") for n in range(3)}
    training = [{"image": f"./imagesTr/a{n}.nii.gz", "label": f"./labelsTr/a{n}.nii.gz"} for n in range(3)]
    described = {"modality": {"0": "CT"}, "labels": {"0": "background", "1": "x", "2": "y"}, "training": training}
    cases = {f"imagesTr/a{n}_0000.nii.gz": stack for n in range(3)} | {f"labelsTr/a{n}.nii.gz": stack for n in range(3)}
    scored = [json.dumps({"step": step, "train/loss": 0.25, "eval/mean_iou": 0.1 * step}) for step in (1, 2, 3)]
    compared_run = run_folder(stored / "run") | {"metrics.jsonl": "\n".join([*scored, ""]).encode()}
    compared_run |= {"images.csv": b'image,mean IoU\na.png,0.25\n"b,c.png",1\n', "finished.json": b"{}"}
    named = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "x": 1, "y": 2}, "file_ending": ".nii.gz"}
    kinds = {
        "pictures": Kind(pictures, (in_bytes,), read_picture),
        "png": Kind(pngs, (in_bytes, mutations.change_png), read_picture),
        "tiff": Kind(tiffs, (in_bytes, mutations.change_tiff), read_picture),
        "geotiff": Kind(rasters(scratch), (in_bytes, mutations.change_tiff), read_raster),
        "geojson": Kind(
            {"areas.geojson": polygons_in_the_world()},
            (in_json, in_bytes),
            read_polygons,
            {f"images/{n}.tif": rasters(scratch)["a.tif"] for n in range(2)},
        ),
        "blocks": Kind(
            {"images/0.tif": rasters(scratch)["a.tif"], "masks/0.tif": rasters(scratch)["c.tif"]},
            (in_bytes, mutations.change_tiff),
            read_blocks,
            {"images/0.tif": rasters(scratch)["a.tif"], "masks/0.tif": rasters(scratch)["c.tif"]},
        ),
        "nifti": Kind({"a.nii": volume(".nii", scratch)}, (in_bytes,), read_volume_file),
        "nifti.gz": Kind({"a.nii.gz": stack}, (in_bytes, mutations.change_inside_gzip), read_volume_file),
        "itk": Kind(
            {f"a{kind}": volume(kind, scratch) for kind in (".nrrd", ".mha")}, (in_bytes, in_lines), read_volume_file
        ),
        "stacks": Kind(
            {"a.npy": volume(".npy", scratch), "a.tif": volume(".tif", scratch)},
            (in_bytes, mutations.change_tiff),
            read_volume_file,
        ),
        "folder": Kind({"images/0.png": picture("png")}, (in_bytes,), read_folder, images | masks),
        "label table": Kind(
            {"classes.csv": b"image,foreground\n0.png,1\n1,0\nimages/2,yes\n3.png,\n"},
            (in_lines, in_bytes),
            read_label_table,
            images | masks,
        ),
        "label images": Kind(
            {
                "masks/0.png": picture("png", "I;16"),
                "masks/1.tif": tiff(7 * grey.astype(np.int32), photometric="minisblack"),
                "masks/2.npy": array(70_000 * grey.astype(np.int64)),
            },
            (in_bytes, mutations.change_png, mutations.change_tiff),
            read_label_images,
            {f"images/{n}.png": images[f"images/{n}.png"] for n in range(3)} | label_images(grey),
        ),
        "one-object masks": Kind(
            {"0/masks/1.png": picture("png", "1"), "0/images/0.png": picture("png")},
            (in_bytes, mutations.change_png),
            read_one_object_masks,
            one_object_masks(),
        ),
        "objects": Kind(written_objects(grey), (in_lines, in_bytes), read_written_objects, written_objects(grey)),
        "coco": Kind({"_annotations.coco.json": coco()}, (in_json, in_json, in_bytes), read_data_set, flat),
        "labelme": Kind(
            {"0.json": labelme()},
            (in_json, in_json, in_bytes),
            read_data_set,
            flat | {"1.json": labelme().replace(b"0.png", b"1.png")},
        ),
        "points": Kind(tables_of_points(), (in_lines, in_json_or_bytes, in_bytes), read_points, flat),
        "points of volumes": Kind(
            points_of_a_volume(), (in_lines, in_json_or_bytes, in_bytes), read_points, {"case.nii.gz": stack}
        ),
        "yolo": Kind(
            {"data.yaml": yolo["data.yaml"], "labels/train/0.txt": yolo_lines}, (in_lines, in_bytes), read_yolo, yolo
        ),
        "voc": Kind(
            {name: voc[name] for name in ("labelmap.txt", "ImageSets/Segmentation/train.txt")},
            (in_lines, in_bytes),
            read_voc,
            voc,
        ),
        "dataset.json": Kind(
            {"dataset.json": json.dumps(described).encode()}, (in_json, in_bytes), read_data_set, decathlon
        ),
        "nnunet": Kind({"dataset.json": json.dumps(named).encode()}, (in_json, in_bytes), read_data_set, cases),
        "classes": Kind({"a.json": b'{"0": "background", "255": "cell"}'}, (in_json, in_bytes), read_classes),
        "model": Kind({"config.json": model["config.json"]}, (in_json, in_json, in_bytes), read_model, model),
        "volume model": Kind({"config.json": volume_model["config.json"]}, (in_json,), read_model, volume_model),
        "weights": Kind(
            {"model.safetensors": model["model.safetensors"]},
            (mutations.change_safetensors, in_bytes),
            read_model,
            model,
        ),
        "encoder model": Kind({"config.json": encoder["config.json"]}, (in_json,), read_model, encoder),
        "encoder": Kind({"config.json": backbone}, (in_json, in_bytes), read_encoder),
        "encoder preprocessor": Kind(
            {"preprocessor_config.json": b'{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}'},
            (in_json, in_bytes),
            read_encoder,
        ),
        "pth": Kind({"a.pth": saved(weights)}, (in_bytes, mutations.change_zip), read_model),
        "onnx": Kind({"a.onnx": onnx}, (in_bytes,), read_model),
        "checkpoint": Kind(
            {f"step/{name}": checkpoint[name] for name in ("state.json", "manifest.json")},
            (in_json, in_bytes),
            read_checkpoint,
            {f"step/{name}": content for name, content in checkpoint.items()},
        ),
        "run": Kind(run_folder(stored / "run"), (in_json_lines, in_bytes), read_run),
        "compared run": Kind(
            {name: compared_run[name] for name in ("images.csv", "metrics.jsonl", "run.json")},
            (in_json_lines_or_bytes, in_lines, in_bytes),
            read_compared_runs,
            compared_run,
        ),
        "list of images": Kind(
            {"list.txt": b"# wrong\nimages/0.png\n\n1.png\n"}, (in_lines, in_bytes), read_list, images | masks
        ),
        "cache": Kind({"key.json": b"0" * 64 + b"\n[1, 2]"}, (in_bytes,), read_cache),
        "tar": Kind({"a.tar": tar()}, (in_bytes,), read_single_stream),
        "parquet": Kind({"a.parquet": parquet()}, (in_bytes,), read_single_stream),
    }
    if find_spec("pyogrio"):
        kinds["geopackage"] = Kind(
            {"areas.gpkg": geopackage(scratch)},
            (in_bytes,),
            read_polygons,
            {f"images/{n}.tif": rasters(scratch)["a.tif"] for n in range(2)},
        )
    return kinds


def in_json_or_bytes(rng: random.Random, content: bytes) -> bytes:
    """A JSON document changed in its meaning, other content in its bytes."""
    if content.startswith(b"{"):
        return mutations.change_json(rng, content)
    return mutations.change_bytes(rng, content)


def label_images(grey: np.ndarray) -> dict[str, bytes]:
    """Label images of several formats."""
    return {"masks/0.png": picture("png", "L"), "masks/1.tif": tiff(grey), "masks/2.npy": array(grey)}


def one_object_masks() -> dict[str, bytes]:
    """A folder for each of three images, with a mask for each of two objects."""
    files: dict[str, bytes] = {}
    for sample in range(3):
        files[f"{sample}/images/{sample}.png"] = picture("png")
        for number in range(2):
            files[f"{sample}/masks/{number}.png"] = picture("png", "1")
    return files


def written_objects(grey: np.ndarray) -> dict[str, bytes]:
    """What prediction writes of an image: its label image, and the table of its objects."""
    file = io.BytesIO()
    Image.fromarray(grey.astype(np.uint16)).save(file, "png")
    height, width = grey.shape
    lines = [",".join(IMAGE_COLUMNS)]
    for number, name in ((1, "cell"), (2, "dirt")):
        lines.append(f"{number},{name},{int((grey == number).sum())},5.50,7.25,0,0,{height},{width},0.9000")
    return {"a.png": file.getvalue(), "a.objects.csv": "\n".join([*lines, ""]).encode()}


def read_label_images(path: Path) -> None:
    """Inspect a data set of objects, look which task it is, and read what a crop is made from."""
    root = path.parent.parent
    read_objects(DataConfig(str(root), val_fraction=0.5))


def read_one_object_masks(path: Path) -> None:
    """The same of a folder for each image; and the images and true objects that predict.py finds in it."""
    root = path.parent.parent.parent
    truth = TruthFolder(root, object_classes=["cell"])
    find_jobs([str(root)], root.parent / "out", [".png"], InputRules(in_sets=True), truth)
    read_objects(DataConfig(str(root), val_fraction=0.5, allow_unpaired=True))


def read_objects(config: DataConfig) -> None:
    for records in load_records(config):
        find_task(records, config)
        reader = ObjectReader()
        object_shapes(records, reader)
        for record in records:
            inspect_image(record)
            with suppress(DataError):
                ObjectTarget(reader.ids(record), reader.ids(record)).renumber()


def read_written_objects(path: Path) -> None:
    """Score what was written, and collect it in the files of all images."""
    folder = path.parent
    output_format = ObjectFormat(("background", "cell", "dirt"))
    truth = PageFile(folder / "a.png")
    job = ImageJob(image=folder / "a.jpg", size=SIZE, output=folder / "a", root=folder, truth=truth)
    with suppress(DataError):
        ImageScorer(output_format, Objects(Classes(output_format.names))).score(job)
    with suppress(DataError):
        output_format.write_joined(folder, [job])
    write_coco(folder, [("a.jpg", folder / "a.png", folder / "a.objects.csv")], output_format.names[1:])


def in_json_lines(rng: random.Random, content: bytes) -> bytes:
    """One line changed, each of which is a JSON document; or the only document."""
    lines = content.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    lines[at] = mutations.change_json(rng, lines[at]) + b"\n"
    return b"".join(lines)


def in_json_lines_or_bytes(rng: random.Random, content: bytes) -> bytes:
    """A line of JSON changed in its meaning, other content in its bytes."""
    if content.startswith(b"{"):
        return in_json_lines(rng, content)
    return mutations.change_bytes(rng, content)


def read_folder(path: Path) -> None:
    read_config(DataConfig(str(path.parent.parent), val_fraction=0.5))


def read_yolo(path: Path) -> None:
    root = path.parent if path.name == "data.yaml" else path.parent.parent.parent
    read_config(DataConfig(str(root), val_fraction=0.5))


def read_voc(path: Path) -> None:
    root = path.parent if path.name == "labelmap.txt" else path.parent.parent.parent
    read_config(DataConfig(str(root), val_fraction=0.5, allow_unpaired=True))
