"""Small generated data sets of the kinds that train.py reads; the pixels are the same whenever they are written."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

POINTS = ("nose", "left_ear", "right_ear")
Points = dict[str, list[float] | None]  # name -> (x, y) or (x, y, z), None where it is absent


def save(pixels: np.ndarray, path: Path) -> None:
    """Write a picture; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def photographs(count: int, size: tuple[int, int], seed: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Stem, pixels and mask of noisy photographs, each with a bright box (100) and a dark one (200)."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        image = rng.integers(60, 160, (*size, 3), dtype=np.uint8)
        mask = np.zeros(size, np.uint8)
        for value, change in ((100, 90), (200, -60)):
            top, left = (int(rng.integers(0, side // 2)) for side in size)
            box = np.s_[top : top + size[0] // 3, left : left + size[1] // 4]
            image[box] = np.clip(image[box].astype(int) + change, 0, 255).astype(np.uint8)
            mask[box] = value
        yield f"photo_{number:02}", image, mask


def write_images(folder: Path, count: int, size: tuple[int, int], seed: int) -> None:
    """`count` photographs and their masks, in `images` and `masks`."""
    for stem, image, mask in photographs(count, size, seed):
        save(image, folder / "images" / f"{stem}.png")
        save(mask, folder / "masks" / f"{stem}.png")


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
    images, annotations = [], []
    for number, (stem, image, _) in enumerate(photographs(count, (48, 40), seed=5)):
        save(image, folder / "images" / f"{stem}.png")
        images.append({"id": number, "file_name": f"{stem}.png", "height": 48, "width": 40})
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


def numbered_discs(count: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Stem, pixels and labels of grey pictures of discs, some of which touch.

    Each picture has one disc more than the one before.
    """
    rng = np.random.default_rng(11)
    rows, columns = np.indices((56, 64))
    for number in range(count):
        labels = np.zeros(rows.shape, np.uint16)
        for label in range(1, 6 + number):
            y, x, radius = rng.uniform((4, 4, 3), (52, 60, 6))
            is_inside = (rows - y) ** 2 + (columns - x) ** 2 <= radius**2
            labels[is_inside & (labels == 0)] = label
        brightness = np.concatenate([[40], rng.uniform(110, 200, labels.max())])
        image = brightness[labels] + rng.normal(0, 6, labels.shape)
        yield f"cells_{number:02}", image.clip(0, 255).astype(np.uint8), labels


def write_objects(folder: Path, count: int) -> None:
    """`count` pictures of discs and their label images, in `images` and `masks`."""
    for stem, image, labels in numbered_discs(count):
        save(image, folder / "images" / f"{stem}.png")
        save(labels, folder / "masks" / f"{stem}.png")


def pictures_of_points(count: int) -> Iterator[tuple[str, np.ndarray, Points]]:
    """File name, pixels and points of pictures.

    Each of the three points has a dot of its own color; some are absent.
    """
    rng = np.random.default_rng(12)
    rows, columns = np.indices((40, 48))
    for number in range(count):
        image = rng.uniform(0, 60, (40, 48, 3))
        points: Points = {}
        for channel, landmark in enumerate(POINTS):
            x, y = rng.uniform((4, 4), (43, 35)).round(2).tolist()
            points[landmark] = None
            if rng.random() >= 0.1:
                points[landmark] = [x, y]
                image[:, :, channel] += 190 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 6)
        yield f"frame_{number:02}.png", image.clip(0, 255).astype(np.uint8), points


def write_points(folder: Path, count: int) -> None:
    """`count` pictures of points, in `images`, and their long table."""
    table = ["image,landmark,x,y,state"]
    for name, image, points in pictures_of_points(count):
        save(image, folder / "images" / name)
        for landmark, place in points.items():
            cells = f"{place[0]},{place[1]},present" if place else ",,absent"
            table.append(f"{name},{landmark},{cells}")
    (folder / "points.csv").write_text("\n".join(table) + "\n")


def write_scans_of_points(folder: Path, count: int) -> dict[str, Points]:
    """`count` scans with two bright dots; file name -> their points, which are counted in voxels."""
    import nibabel

    folder.mkdir(parents=True)
    points_of_scans: dict[str, Points] = {}
    for number in range(count):
        rng = np.random.default_rng(number)
        voxels = rng.integers(0, 100, (20, 24, 12)).astype(np.int16)
        name = f"scan_{number:02}.nii.gz"
        points_of_scans[name] = {}
        for landmark, brightness in (("front", 400), ("back", 200)):
            x, y, z = rng.integers((3, 3, 2), (17, 21, 10)).tolist()
            voxels[x - 1 : x + 2, y - 1 : y + 2, z - 1 : z + 2] += brightness
            points_of_scans[name][landmark] = [x, y, z]
        nibabel.save(nibabel.Nifti1Image(voxels, np.diag([1.0, 1.0, 2.0, 1.0])), folder / name)
    return points_of_scans


def write_point_volumes(folder: Path, count: int) -> None:
    """`count` scans of points, in `images`, and their table."""
    table = ["image,landmark,x,y,z"]
    for name, points in write_scans_of_points(folder / "images", count).items():
        for landmark, place in points.items():
            table.append(",".join([name, landmark, *map(str, place or ())]))
    (folder / "points.csv").write_text("\n".join(table) + "\n")


def write_overlapping(folder: Path, count: int) -> None:
    """`count` photographs, with a folder of masks for each of three classes: two boxes, and what surrounds both."""
    for stem, image, values in photographs(count, (48, 56), seed=13):
        save(image, folder / "images" / f"{stem}.png")
        rows, columns = np.nonzero(values)
        around = np.zeros(values.shape, bool)
        around[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = True
        for name, is_inside in (("around", around), ("bright", values == 100), ("dark", values == 200)):
            save(255 * is_inside.astype(np.uint8), folder / "masks" / name / f"{stem}.png")


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
