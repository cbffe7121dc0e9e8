"""Small generated data sets of the kinds that train.py reads; the pixels are the same whenever they are written."""

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

POINTS = ("nose", "left_ear", "right_ear")


def write_images(folder: Path, count: int, size: tuple[int, int], seed: int) -> None:
    """`count` noisy photographs, each with a bright and a dark box, and masks of the values 0, 100 and 200."""
    rng = np.random.default_rng(seed)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number in range(count):
        image = rng.integers(60, 160, (*size, 3), dtype=np.uint8)
        mask = np.zeros(size, np.uint8)
        for value, change in ((100, 90), (200, -60)):
            top, left = (int(rng.integers(0, side // 2)) for side in size)
            box = np.s_[top : top + size[0] // 3, left : left + size[1] // 4]
            image[box] = np.clip(image[box].astype(int) + change, 0, 255).astype(np.uint8)
            mask[box] = value
        Image.fromarray(image).save(folder / "images" / f"photo_{number:02}.png")
        Image.fromarray(mask).save(folder / "masks" / f"photo_{number:02}.png")


def write_volumes(folder: Path, count: int) -> None:
    """`count` scans of uneven spacing with a bright box each, in the Medical Segmentation Decathlon's layout."""
    import nibabel

    affine = np.diag([1.0, 1.0, 2.5, 1.0])
    training = []
    for number in range(count):
        rng = np.random.default_rng(number)
        image = rng.integers(0, 100, (20, 24, 12)).astype(np.int16)
        label = np.zeros(image.shape, np.uint8)
        corner = rng.integers(2, 8, 3)
        box = tuple(slice(start, start + side) for start, side in zip(corner, (8, 9, 4), strict=True))
        image[box] += 150
        label[box] = 1
        names = {}
        for key, kind, voxels in (("image", "imagesTr", image), ("label", "labelsTr", label)):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(voxels, affine), folder / kind / f"scan_{number:02}.nii.gz")
            names[key] = f"./{kind}/scan_{number:02}.nii.gz"
        training.append(names)
    content = {"modality": {"0": "MRI"}, "labels": {"0": "background", "1": "box"}, "training": training}
    (folder / "dataset.json").write_text(json.dumps(content))


def write_coco(folder: Path, count: int) -> None:
    """`count` images with two polygons each."""
    write_images(folder, count, (48, 40), seed=5)
    shutil.rmtree(folder / "masks")
    images, annotations = [], []
    for number in range(count):
        images.append({"id": number, "file_name": f"photo_{number:02}.png", "height": 48, "width": 40})
        for category in (1, 2):
            left, top = 4 * category + number, 6 * category
            polygon = [left, top, left + 15.5, top + 2, left + 9, top + 17.5]
            entry = {"id": 2 * number + category, "image_id": number, "category_id": category}
            annotations.append(entry | {"segmentation": [polygon], "iscrowd": 0})
    categories = [{"id": 1, "name": "cell"}, {"id": 2, "name": "nucleus"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "_annotations.coco.json").write_text(json.dumps(content))


def write_tars(folder: Path, source: Path) -> None:
    """The training images of `source` in two tar files, and its validation images in one."""
    folder.mkdir()
    for split, shards in (("train", 2), ("val", 1)):
        names = sorted(path.stem for path in (source / split / "images").iterdir())
        for shard in range(shards):
            with tarfile.open(folder / f"{split}-{shard:02}.tar", "w") as tar:
                for name in names[shard::shards]:
                    tar.add(source / split / "images" / f"{name}.png", f"{name}.image.png")
                    tar.add(source / split / "masks" / f"{name}.png", f"{name}.mask.png")


def write_encoder(folder: Path) -> None:
    """A tiny ResNet of transformers with random weights."""
    import transformers

    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8, layer_type="basic", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]
    )
    settings = json.loads(config.to_json_string(use_diff=False))
    backbone = transformers.AutoBackbone.from_config(transformers.AutoConfig.for_model(**settings))
    backbone.save_pretrained(folder)


def write_objects(folder: Path, count: int) -> None:
    """`count` grey pictures of numbered discs, of which some touch; each mask has one more than the mask before."""
    rng = np.random.default_rng(11)
    rows, columns = np.indices((56, 64))
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number in range(count):
        labels = np.zeros(rows.shape, np.uint16)
        for label in range(1, 6 + number):
            y, x, radius = rng.uniform((4, 4, 3), (52, 60, 6))
            is_inside = (rows - y) ** 2 + (columns - x) ** 2 <= radius**2
            labels[is_inside & (labels == 0)] = label
        brightness = np.concatenate([[40], rng.uniform(110, 200, labels.max())])
        image = brightness[labels] + rng.normal(0, 6, labels.shape)
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / "images" / f"cells_{number:02}.png")
        Image.fromarray(labels).save(folder / "masks" / f"cells_{number:02}.png")


def write_points(folder: Path, count: int) -> None:
    """`count` pictures with a dot of a color of its own at each of three points, some of which are absent."""
    rng = np.random.default_rng(12)
    rows, columns = np.indices((40, 48))
    (folder / "images").mkdir(parents=True)
    table = ["image,landmark,x,y,state"]
    for number in range(count):
        image = rng.uniform(0, 60, (40, 48, 3))
        name = f"frame_{number:02}.png"
        for channel, landmark in enumerate(POINTS):
            x, y = rng.uniform((4, 4), (43, 35)).round(2)
            if rng.random() < 0.1:
                table.append(f"{name},{landmark},,,absent")
                continue
            image[:, :, channel] += 190 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 6)
            table.append(f"{name},{landmark},{x},{y},present")
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / "images" / name)
    (folder / "points.csv").write_text("\n".join(table) + "\n")


def write_point_volumes(folder: Path, count: int) -> None:
    """`count` scans with two bright dots, whose places are counted in voxels."""
    import nibabel

    (folder / "images").mkdir(parents=True)
    table = ["image,landmark,x,y,z"]
    for number in range(count):
        rng = np.random.default_rng(number)
        voxels = rng.integers(0, 100, (20, 24, 12)).astype(np.int16)
        name = f"scan_{number:02}.nii.gz"
        for landmark in ("front", "back"):
            x, y, z = rng.integers((3, 3, 2), (17, 21, 10)).tolist()
            voxels[x - 1 : x + 2, y - 1 : y + 2, z - 1 : z + 2] += 400 if landmark == "front" else 200
            table.append(f"{name},{landmark},{x},{y},{z}")
        nibabel.save(nibabel.Nifti1Image(voxels, np.diag([1.0, 1.0, 2.0, 1.0])), folder / "images" / name)
    (folder / "points.csv").write_text("\n".join(table) + "\n")


def write_overlapping(folder: Path, count: int) -> None:
    """`count` photographs, with a folder of masks for each of three classes: two boxes, and what surrounds both."""
    write_images(folder, count, (48, 56), seed=13)
    (folder / "masks").rename(folder / "values")
    for path in sorted((folder / "values").iterdir()):
        values = np.asarray(Image.open(path))
        rows, columns = np.nonzero(values)
        around = np.zeros(values.shape, bool)
        around[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = True
        for name, is_inside in (("around", around), ("bright", values == 100), ("dark", values == 200)):
            (folder / "masks" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(255 * is_inside.astype(np.uint8)).save(folder / "masks" / name / path.name)
    shutil.rmtree(folder / "values")


def write_partly_labeled(folder: Path, count: int) -> None:
    """`count` photographs, a third of them labeled for both classes, the others for one."""
    write_images(folder, count, (48, 56), seed=14)
    table = ["image,classes"]
    for number in range(count):
        classes = ("bright;dark", "bright", "dark")[number % 3]
        table.append(f"photo_{number:02}.png,{classes}")
    (folder / "classes.csv").write_text("\n".join(table) + "\n")


def write_rasters(folder: Path, count: int, *, polygons: bool = False) -> None:
    """`count` scenes of four bands of 16 bits with a place in UTM and a corner without data, one bright field in each.

    Masks lie on a grid of twice the pixels; with `polygons` the fields are outlined in a GeoJSON file instead.
    """
    import rasterio
    from rasterio.transform import from_origin

    (folder / "images").mkdir(parents=True)
    features = []
    for number in range(count):
        rng = np.random.default_rng(number)
        west = 500_000 + 600 * number
        bands = rng.integers(200, 400, (4, 44, 52)).astype(np.uint16)
        top, left = rng.integers(4, 20, 2).tolist()
        bands[1, top : top + 18, left : left + 24] += 3000
        bands[:, :5, :7] = 0
        scene = {"driver": "GTiff", "crs": "EPSG:32633", "count": 4, "dtype": "uint16", "height": 44, "width": 52}
        with rasterio.open(
            folder / "images" / f"scene_{number:02}.tif",
            "w",
            nodata=0,
            transform=from_origin(west, 5_000_000, 10, 10),
            **scene,
        ) as file:
            file.write(bands)
        if polygons:
            corners = [(left, top), (left + 24, top), (left + 24, top + 18), (left, top + 18), (left, top)]
            ring = [[west + 10 * x, 5_000_000 - 10 * y] for x, y in corners]
            geometry = {"type": "Polygon", "coordinates": [ring]}
            crop = ("wheat", "maize")[number % 2]
            features.append({"type": "Feature", "properties": {"crop": crop}, "geometry": geometry})
            continue
        (folder / "masks").mkdir(exist_ok=True)
        mask = np.zeros((1, 88, 104), np.uint8)
        mask[0, 2 * top : 2 * top + 36, 2 * left : 2 * left + 48] = 1
        with rasterio.open(
            folder / "masks" / f"scene_{number:02}.tif",
            "w",
            transform=from_origin(west, 5_000_000, 5, 5),
            **scene | {"count": 1, "dtype": "uint8", "height": 88, "width": 104},
        ) as file:
            file.write(mask)
    if polygons:
        crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::32633"}}
        content = {"type": "FeatureCollection", "crs": crs, "features": features}
        (folder / "fields.geojson").write_text(json.dumps(content))


def write_parquet(folder: Path, source: Path) -> None:
    """The training images of `source` in two parquet files of two row groups each, and its validation images in one."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir()
    for split, shards in (("train", 2), ("val", 1)):
        names = sorted(path.name for path in (source / split / "images").iterdir())
        for shard in range(shards):
            columns = {}
            for column, kind in (("image", "images"), ("mask", "masks")):
                cells = []
                for name in names[shard::shards]:
                    cells.append({"bytes": (source / split / kind / name).read_bytes(), "path": name})
                columns[column] = cells
            table = pyarrow.table(columns)
            parquet.write_table(table, folder / f"{split}-{shard:05}.parquet", row_group_size=len(table) // 2)
