"""Damaged files of others end in a result or in one line: the scripts read them here, changed at random by a seed.

So do pipes in the place of files, for which nothing writes.

FUZZ_SEED and FUZZ_COUNT in the environment choose other inputs: `FUZZ_SEED=7 FUZZ_COUNT=100 pytest tests/test_fuzz.py`
makes 100 of each kind. A failure names the kind and the seed, which make the same input again.
"""

import json
import os
import random
import shutil
import signal
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from support import coco_files, labelme_files, points, rasters, volumes
from support.folders import write_folder
from support.in_process import Run, run_predict, run_train
from support.launches import ROOT

from runtime.errors import UserError

SEED = int(os.environ.get("FUZZ_SEED", "0"))
COUNT = int(os.environ.get("FUZZ_COUNT", "1"))
MODEL = ROOT / "tests" / "data" / "models" / "images"
INTEGERS = (0, 1, 2, 127, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
VALUES = (None, True, -1, 0, 0.5, 1e308, float("nan"), 10**30, "", "\0", "a\nb", "../../x", "x" * 5000, [], {}, [None])


def change_bytes(rng: random.Random, content: bytes) -> bytes:
    """One to four bytes, numbers or runs of bytes changed, removed or repeated; more often in the header."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(len(changed), rng.choice((64, 512, 10**9))) + 1)
        length = rng.randint(1, 16)
        action = rng.choice(("number", "number", "random", "remove", "repeat", "cut"))
        if action == "number":
            size = rng.choice("BHIQ")
            length = struct.calcsize(size)
            changed[at : at + length] = struct.pack(rng.choice("<>") + size, rng.choice(INTEGERS) % 256**length)
        elif action == "random":
            changed[at : at + length] = rng.randbytes(length)
        elif action == "remove":
            del changed[at : at + length]
        elif action == "repeat":
            changed[at:at] = changed[at : at + length] * rng.randint(1, 20)
        else:
            del changed[at:]
    return bytes(changed)


def change_json(rng: random.Random, content: bytes) -> bytes:
    """A value of a JSON document replaced, removed, nested or exchanged with another."""
    document = json.loads(content)
    places = []
    containers = [document]
    while containers:
        container = containers.pop()
        for key, value in list(container.items() if isinstance(container, dict) else enumerate(container)):
            places.append((container, key))
            if isinstance(value, dict | list):
                containers.append(value)
    container, key = rng.choice(places)
    action = rng.choice(("replace", "replace", "remove", "nest", "exchange"))
    if action == "replace":
        container[key] = rng.choice(VALUES)
    elif action == "remove":
        del container[key]
    elif action == "nest":
        container[key] = [container[key]]
    else:
        other, other_key = rng.choice(places)
        container[key] = json.loads(json.dumps(other[other_key]))
    return json.dumps(document).encode()


def check(folder: Path) -> None:
    """train.py looks at the data set."""
    run = run_train(folder.parent / "run", "--dataset", folder, "--check-data", "--val-fraction", "0.5")
    check_end(run)


def predict_folder(folder: Path) -> None:
    """predict.py predicts the pictures."""
    result = run_predict("--model", MODEL, "--input", folder / "images", "--output", folder.parent / "out")
    assert result.returncode in (0, 1, 2)
    assert "Traceback" not in result.stderr


def predict_by(folder: Path) -> None:
    """predict.py opens the model."""
    picture = ROOT / "tests" / "data" / "images" / "val" / "images" / "photo_00.png"
    result = run_predict("--model", folder, "--input", picture, "--output", folder.parent / "out")
    assert result.returncode in (0, 1, 2)


def resume(folder: Path) -> None:
    """train.py goes on from the run, or repeats it."""
    data = ROOT / "tests" / "data" / "images"
    check_end(run_train(folder, "--dataset", data, "--resume", "auto", "--tracker", "none", "--num-workers", "0"))
    check_end(run_train(folder.parent / "again", "--dataset", data, "--like", folder, "--check-data"))


def check_end(run: Run) -> None:
    """A run ends in its result, or in lines."""
    assert run.exit_code in (0, 1, 2), run.output
    assert "Traceback" not in run.output


def write_tiffs(folder: Path) -> None:
    write_folder(folder, 2, seed=0)
    for path in sorted(folder.glob("*/*.png")):
        tifffile.imwrite(path.with_suffix(".tif"), np.asarray(Image.open(path)), compression="zlib")
        path.unlink()


def write_labelme(folder: Path) -> None:
    for stem in ("a", "b"):
        labelme_files.write_labelme(folder, stem, [labelme_files.shape("cell", [[5, 5], [40, 40], [5, 40]])])


def write_scenes(folder: Path) -> None:
    for index in range(2):
        bands, _ = rasters.scene(index, channels=3)
        rasters.write_raster(folder / "images" / f"{index}.tif", bands, compress="lzw")
        areas = {"type": "FeatureCollection", "features": [rasters.feature(rasters.square(2, 2, 20), kind="field")]}
        (folder / "masks").mkdir(exist_ok=True)
        (folder / "masks" / f"{index}.geojson").write_text(json.dumps(areas))


def write_run(folder: Path) -> None:
    shutil.copytree(ROOT / "tests" / "data" / "run", folder, ignore=shutil.ignore_patterns("weights_at_step_4*"))


Kind = tuple[Callable[[Path], object], str, Callable[[Path], None]]
KINDS: dict[str, Kind] = {  # what writes a good folder, which of its files are changed, which script reads it
    "image": (lambda folder: write_folder(folder, 2, seed=0), "images/*_00.png", check),
    "mask": (lambda folder: write_folder(folder, 2, seed=0), "masks/*_00.png", check),
    "predicted image": (lambda folder: write_folder(folder, 2, seed=0), "images/*_00.png", predict_folder),
    "TIFF": (write_tiffs, "*/*.tif", check),
    "predicted TIFF": (write_tiffs, "images/*.tif", predict_folder),
    "raster": (write_scenes, "images/*.tif", check),
    "polygons": (write_scenes, "masks/*.geojson", check),
    "NIfTI": (volumes.write_decathlon, "imagesTr/*", check),
    "Decathlon's description": (volumes.write_decathlon, "dataset.json", check),
    "COCO": (coco_files.write_splits, "annotations/instances_train2017.json", check),
    "labelme": (write_labelme, "a.json", check),
    "points": (lambda folder: points.write_dots(folder, 4, seed=0), "*.csv", check),
    "config": (lambda folder: shutil.copytree(MODEL, folder), "config.json", predict_by),
    "weights": (lambda folder: shutil.copytree(MODEL, folder), "model.safetensors", predict_by),
    "state of a run": (write_run, "**/*.*", resume),
}


@pytest.mark.parametrize("number", range(COUNT))
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_ends_in_a_result_or_in_one_line(kind, number, tmp_path):
    rng = random.Random(f"{SEED} {kind} {number}")
    write, pattern, read = KINDS[kind]
    write(tmp_path / "good")
    file = rng.choice(sorted((tmp_path / "good").glob(pattern)))
    change = change_json if file.suffix in (".json", ".geojson") and rng.random() < 0.8 else change_bytes
    file.write_bytes(change(rng, file.read_bytes()))
    try:
        read(tmp_path / "good")
    except UserError as error:
        assert len(str(error).splitlines()) == 1


@pytest.fixture
def bounded():
    """Ends a test that waits for a file, after a minute without another one."""
    yield partial(signal.alarm, 60)
    signal.alarm(0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(kind, tmp_path, bounded):
    write, pattern, read = KINDS[kind]
    write(tmp_path / "good")
    files = [file.relative_to(tmp_path / "good") for file in sorted((tmp_path / "good").glob(pattern))]
    for number, file in enumerate(files):
        folder = tmp_path / str(number) / "piped"
        shutil.copytree(tmp_path / "good", folder)
        (folder / file).unlink()
        os.mkfifo(folder / file)
        bounded()
        try:
            read(folder)
        except UserError as error:
            assert len(str(error).splitlines()) == 1
