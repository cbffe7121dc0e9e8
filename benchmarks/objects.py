"""How well and how fast objects are told apart, for docs/objects.md.

With a perfect network, whose maps are drawn from the truth:

python benchmarks/objects.py discs                   20,000 discs on 8192 x 8192 pixels: found, time and memory
python benchmarks/objects.py maps DSB/stage1_train   what tells objects apart: three kinds of maps

With trained ones, for so many minutes of processor time; DSB holds train/ and val/, with a folder for each image:

python benchmarks/objects.py train runs/discs --minutes 10                   the same discs, from a TIFF
python benchmarks/objects.py candidates runs/candidates --data DSB --minutes 20   each kind of map, and border weights
python benchmarks/objects.py candidates runs/candidates --data DSB --minutes 20 --only center

`maps` takes every fifteenth image of a folder of one-object masks, by sorted name. The maps of
the candidates are decoded in several ways: what is published is the best one of each.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import numpy as np
import psutil
import tifffile
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.ndimage import distance_transform_edt, find_objects, label
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import train
from data_utils.sources.annotations.one_object_masks import OneObjectMasks
from inference import Predictor
from inference.decoding import finder
from inference.decoding.answers import LEVELS, pack_answers
from inference.decoding.finder import ObjectFinder
from inference.decoding.objects import ObjectDecoder
from tasks.classes import ClassTarget
from tasks.matching import ObjectScores, label_numbers, pack_labels
from tasks.objects import Objects, ObjectTarget, RenderedObjects, normalized_depth
from train_utils.monitoring import pace, rehearsal
from unet.config import IGNORE_INDEX

ROOT = Path(__file__).resolve().parent.parent
SIDE = 8192
DISCS = 20_000
TOUCHING = 3  # every third disc touches another one
STRIP = 64
STEP = 15  # every so many images are scored
PEAKS = (13, 26, 51)  # of 255: a seed is so much deeper than what lies between it and deeper ones
LEARNED_PEAKS = (26, 51, 102)
BLURS = (1.0, 2.0, 3.0)  # of learned maps
TRAINING_IMAGES = 48  # of discs
TRAINING_SIDE = 512
FEWER = 20  # discs at most that one of them has less than another
BORDER_WEIGHT = 10.0  # w0 of the U-Net paper
BORDER_WIDTH = 5.0  # its sigma, in pixels
FAR = 9  # times BORDER_WIDTH: a border so far away changes no weight in float64
DARK = 50  # a picture with a lower median is one of fluorescence


def draw_discs(rng: np.random.Generator, side: int, discs: int) -> np.ndarray:
    """(side, side) int32: numbered discs on a jittered grid; one of three lies at the side of another one."""
    ids = np.zeros((side, side), np.int32)
    cells = int(np.ceil(np.sqrt(discs / (1 + 1 / (TOUCHING - 1)))))
    pitch = side // cells
    number = 0
    for cell in rng.permutation(cells * cells):
        row, column = divmod(int(cell), cells)
        radius = rng.uniform(9, 12)
        y = (row + 0.5) * pitch + rng.uniform(-1, 1)
        x = (column + 0.3) * pitch + rng.uniform(-1, 1)
        places = [(y, x, radius)]
        if number % TOUCHING == 0:
            other = rng.uniform(9, 12)
            places.append((y, x + radius + other - 1.5, other))
        for place_y, place_x, place_radius in places:
            if number < discs:
                number += stamp(ids, place_y, place_x, place_radius, number + 1)
    return ids


def stamp(ids: np.ndarray, y: float, x: float, radius: float, number: int) -> int:
    """Draw a disc where nothing is yet; 1 if there was room, else 0."""
    top, left = int(y - radius) - 1, int(x - radius) - 1
    size = int(2 * radius) + 4
    if min(top, left) < 0 or max(top, left) + size > len(ids):
        return 0
    rows, columns = np.mgrid[top : top + size, left : left + size]
    window = ids[top : top + size, left : left + size]
    is_disc = ((rows - y) ** 2 + (columns - x) ** 2 <= radius**2) & (window == 0)
    window[is_disc] = number
    return 1


def answers_of(is_object: np.ndarray, map_values: np.ndarray) -> np.ndarray:
    """What a perfect network would answer with this map, 0..1."""
    levels = np.rint(LEVELS * map_values).astype(np.int32)
    answers = pack_answers(np.ones_like(levels), levels, np.full_like(levels, LEVELS))
    return np.where(is_object, answers, 0)


def true_depth(ids: np.ndarray) -> np.ndarray:
    """(H, W): the distance to the border of each disc, divided by 12, the largest radius."""
    edges = np.zeros(ids.shape, bool)
    for axis in (0, 1):
        differ = np.diff(ids, axis=axis) != 0
        first = [slice(None)] * 2
        second = [slice(None)] * 2
        first[axis], second[axis] = slice(None, -1), slice(1, None)
        edges[tuple(first)] |= differ
        edges[tuple(second)] |= differ
    return (distance_transform_edt(~edges) / 12).clip(0, 1) * (ids > 0)


def measure_discs() -> None:
    ids = draw_discs(np.random.default_rng(0), SIDE, DISCS)
    count = int(ids.max())
    touching = count - label(ids > 0)[1]
    answers = answers_of(ids > 0, true_depth(ids))
    process = psutil.Process()
    before = peak = process.memory_info().rss
    start = time.process_time()
    objects = ObjectFinder(Objects(smallest=50))
    for top in range(0, SIDE, STRIP):
        objects.add(answers[top : top + STRIP])
        peak = max(peak, process.memory_info().rss)
    labels = np.concatenate(list(objects.finish()))
    seconds = time.process_time() - start
    peak = max(peak, process.memory_info().rss)
    scores = score(labels, ids)
    found = int(scores.values["found"])
    print(f"{count:,} discs on {SIDE} x {SIDE} pixels, {2 * touching:,} of them in touching pairs")
    strict = scores.classes[0]["ap_by_iou"][8]
    print(f"{found:,} found at an IoU of 0.5, {len(objects.objects):,} predicted; AP@0.9 {strict:.4f}")
    memory = f"{(peak - before) / 1e6:,.0f} MB, of which the labels are {labels.nbytes / 1e6:,.0f}"
    print(f"{seconds:.1f} s of one core, {memory}")


def score(labels: np.ndarray, ids: np.ndarray) -> ObjectScores:
    """The scores of one image."""
    scores = Objects().new_scores(1)
    add(scores, labels, ids)
    return scores


def add(scores: ObjectScores, labels: np.ndarray, ids: np.ndarray) -> None:
    """Add an image to scores that were made for one."""
    mask = torch.from_numpy((ids > 0).astype(np.uint8))[None]
    target = ObjectTarget(mask, torch.from_numpy(ids.astype(np.int64))[None])
    scores.add(torch.from_numpy(labels.astype(np.int64))[None], target, 0)


def edge_map(ids: Tensor, known: Tensor) -> Tensor:
    """(B, H, W): 0 on the pixels of objects that have a neighbor of another number, 1 in the others."""
    inside = (ids > 0) & known
    for axis in (1, 2):
        last = ids.shape[axis] - 1
        same = ids.narrow(axis, 0, last) == ids.narrow(axis, 1, last)
        inside.narrow(axis, 0, last).logical_and_(same)
        inside.narrow(axis, 1, last).logical_and_(same)
    return inside.float()


def center_map(ids: Tensor, known: Tensor) -> Tensor:
    """(B, H, W): a Gaussian about the center of each object, as wide as half the radius of a disc of its area."""
    sides = [torch.arange(side, dtype=torch.float64) for side in ids.shape[1:]]
    positions = [grid.flatten() for grid in torch.meshgrid(*sides, indexing="ij")]
    maps = []
    for numbers in ids.flatten(1):
        areas = torch.bincount(numbers).double()
        squares = torch.zeros(len(numbers), dtype=torch.float64)
        for position in positions:
            center = torch.bincount(numbers, position) / areas.clamp_min(1)
            squares += (position - center[numbers]) ** 2
        width = areas[numbers] / torch.pi / 4
        maps.append(torch.exp(-squares / (2 * width)) * (numbers > 0))
    return torch.stack(maps).view_as(ids).float() * known


def border_weights(ids: np.ndarray) -> np.ndarray:
    """(H, W) float64: the second term of equation 2 of the U-Net paper (Ronneberger et al. 2015, arXiv:1505.04597).

    It is w0 exp(-(d1 + d2)^2 / (2 sigma^2)); d1 is the distance to the nearest object, d2 that to the second nearest.
    """
    far = int(FAR * BORDER_WIDTH)
    nearest = np.full(ids.shape, np.inf)
    second = np.full(ids.shape, np.inf)
    for number, box in enumerate(find_objects(ids), 1):
        if box is None:
            continue
        window = tuple(slice(max(0, side.start - far), side.stop + far) for side in box)
        distance = distance_transform_edt(ids[window] != number)
        second[window] = np.minimum(second[window], np.maximum(nearest[window], distance))
        nearest[window] = np.minimum(nearest[window], distance)
    return BORDER_WEIGHT * np.exp(-((nearest + second) ** 2) / (2 * BORDER_WIDTH**2))


def render_apart(task: Objects, targets: ObjectTarget) -> RenderedObjects:
    """Objects that touch are drawn apart, by a pixel of each; instead of a map there are the border weights."""
    ids = targets.ids.numpy().astype(np.int32)
    touches = np.zeros(ids.shape, bool)
    for axis in (1, 2):
        first = ids.take(range(ids.shape[axis] - 1), axis)
        second = ids.take(range(1, ids.shape[axis]), axis)
        differ = (first != second) & (first > 0) & (second > 0)
        np.moveaxis(touches, axis, 0)[:-1] |= np.moveaxis(differ, axis, 0)
        np.moveaxis(touches, axis, 0)[1:] |= np.moveaxis(differ, axis, 0)
    weights = np.stack([border_weights(np.where(gaps, 0, image)) for image, gaps in zip(ids, touches, strict=True)])
    mask = targets.mask.masked_fill(torch.from_numpy(touches), 0)
    return RenderedObjects(mask, torch.from_numpy(weights).float())


def weighted_partial(task: Objects, logits: Tensor, targets: RenderedObjects) -> tuple[Tensor, ...]:
    """The terms of the classes, and the cross-entropy times the border weights."""
    class_terms = task.classes.partial(logits[:, :-1].float(), ClassTarget(targets.mask))
    known = targets.mask != IGNORE_INDEX
    truth = targets.mask.long() * known
    errors = F.nll_loss(logits[:, :-1].float().log_softmax(dim=1), truth, reduction="none")
    return (*class_terms, (errors * targets.depth * known).sum())


def renderer(render_map: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Objects, ObjectTarget], RenderedObjects]:
    """What `Objects.render` is for another map."""

    def render(task: Objects, targets: ObjectTarget) -> RenderedObjects:
        return RenderedObjects(targets.mask, render_map(targets.ids, targets.mask != IGNORE_INDEX))

    return render


MAPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "depth": normalized_depth,
    "edge": edge_map,
    "center": center_map,
}
CANDIDATES = ("center", "depth", "edge", "weights")


def images_of(folder: Path) -> Iterator[np.ndarray]:
    """The numbers of the objects of some images."""
    for sample in sorted(folder.iterdir())[::STEP]:
        image = next((sample / "images").iterdir())
        yield OneObjectMasks(str(sample / "masks"), str(image)).render()


def measure_maps(folder: Path) -> None:
    rows: dict[str, ObjectScores] = {"connected components": Objects().new_scores(1)}
    for name in MAPS:
        rows |= {f"{name}, peaks of {peak / LEVELS:.2f}": Objects().new_scores(1) for peak in PEAKS}
    for ids in images_of(folder):
        components = label(ids > 0)[0]
        add(rows["connected components"], pack_labels(components, components > 0), ids)
        for name, render_map in MAPS.items():
            numbers = torch.from_numpy(ids.astype(np.int64))[None]
            answers = answers_of(ids > 0, render_map(numbers, torch.ones_like(numbers, dtype=torch.bool))[0].numpy())
            for peak in PEAKS:
                finder.PEAK = peak
                objects = ObjectFinder(Objects())
                objects.add(answers)
                labels = np.concatenate(list(objects.finish()))
                assert label_numbers(labels).max(initial=0) == len(objects.objects)
                add(rows[f"{name}, peaks of {peak / LEVELS:.2f}"], labels, ids)
    for name, scores in rows.items():
        values = scores.values
        counts = f"{values['predicted']:,} for {values['objects']:,}"
        print(f"{name:<24} AP@0.5 {values['ap50']:.4f}  AP@0.75 {values['ap75']:.4f}  {counts}")


class Decoding(NamedTuple):
    """A way to tell objects apart in a learned map: `finder.BLUR` and `finder.PEAK`; with a peak of None not at all."""

    blur: float
    peak: int | None

    def __str__(self) -> str:
        if self.peak is None:
            return "connected components"
        return f"blur {self.blur:g}, peaks of {self.peak / LEVELS:.2f}"

    def labels(self, answers: np.ndarray, task: Objects) -> np.ndarray:
        """The objects of an image, as `pack_labels` makes them."""
        separate = whole if self.peak is None else finder.separate_objects
        with (
            mock.patch.object(finder, "BLUR", self.blur),
            mock.patch.object(finder, "PEAK", self.peak),
            mock.patch.object(finder, "separate_objects", separate),
        ):
            objects = ObjectFinder(task)
            objects.add(answers)
            return np.concatenate(list(objects.finish()))


DECODINGS = [Decoding(blur, peak) for blur in BLURS for peak in LEARNED_PEAKS]
COMPONENTS = Decoding(1.0, None)


def whole(answers: np.ndarray) -> tuple[np.ndarray, int]:
    """A component that is one object."""
    return (answers > 0).astype(np.int32), 1


def train_for(minutes: float, data: Path, output: Path) -> None:
    """Train for so many minutes of this process's processor time, so that other programs take none of it."""
    flags = ["--dataset", data, "--output-dir", output, "--max-minutes", minutes, "--num-workers", 0]
    with (
        mock.patch.object(rehearsal, "time", SimpleNamespace(monotonic=time.process_time)),
        mock.patch.object(pace, "time", SimpleNamespace(monotonic=time.process_time)),
        mock.patch.object(pace, "PROCESS_START", 0.0),
        mock.patch.object(sys, "argv", ["train.py", *map(str, flags)]),
    ):
        train.main()


def train_candidate(name: str, data: Path, minutes: float, output: Path) -> None:
    """Train with one candidate, score it on the validation images, and write the scores to candidates.jsonl."""
    render = render_apart if name == "weights" else renderer(MAPS[name])
    partial = weighted_partial if name == "weights" else Objects.partial
    separate = whole if name == "weights" else finder.separate_objects
    with (
        mock.patch.object(Objects, "render", render),
        mock.patch.object(Objects, "partial", partial),
        mock.patch.object(finder, "separate_objects", separate),
    ):
        train_for(minutes, data, output / name)
    spent = time.process_time()
    steps = json.loads((output / name / "finished.json").read_text())["step"]
    decodings = [COMPONENTS] if name == "weights" else [COMPONENTS, *DECODINGS]
    lines = []
    for decoding, (all_scores, dark_scores) in score_decodings(
        output / name / "model", data / "val", decodings
    ).items():
        line = {"candidate": name, "decoding": str(decoding), "minutes": spent / 60, "steps": steps}
        for kind, scores in (("all", all_scores), ("fluorescence", dark_scores)):
            values = scores.values
            line |= {f"{kind} {key}": values[key] for key in ("ap50", "ap75", "predicted", "objects")}
        lines.append(json.dumps(line))
        print(lines[-1], flush=True)
    with (output / "candidates.jsonl").open("a") as file:
        file.write("\n".join(lines) + "\n")


def score_decodings(
    model: Path, folder: Path, decodings: list[Decoding]
) -> dict[Decoding, tuple[ObjectScores, ObjectScores]]:
    """The scores of each decoding: of all images of a folder of one-object masks, and of those of fluorescence."""
    predictor = Predictor.from_pretrained(model)
    task = predictor.task
    assert isinstance(task, Objects)
    decoder = ObjectDecoder(task)
    scores = {decoding: (Objects().new_scores(1), Objects().new_scores(1)) for decoding in decodings}
    for sample in sorted(folder.iterdir()):
        image = next((sample / "images").iterdir())
        ids = OneObjectMasks(str(sample / "masks"), str(image)).render()
        inputs = predictor.inputs(image, image.name)
        (logits,) = predictor.logits_of_batch([inputs.tensors], [inputs.size])
        answers = decoder.decode(logits).int().numpy()
        for decoding, (all_scores, dark_scores) in scores.items():
            labels = decoding.labels(answers, task)
            add(all_scores, labels, ids)
            if is_fluorescence(image):
                add(dark_scores, labels, ids)
    return scores


def is_fluorescence(image: Path) -> bool:
    """Whether a picture is grey and dark."""
    pixels = np.asarray(Image.open(image).convert("RGB")).astype(int)
    is_grey = np.abs(pixels[..., 0] - pixels[..., 1]).max() < 8
    return bool(is_grey and np.median(pixels) < DARK)


def measure_candidates(names: list[str], data: Path, minutes: float, output: Path) -> None:
    """Each candidate in a process of its own."""
    output.mkdir(parents=True, exist_ok=True)
    for name in names:
        in_own_process(train_candidate, name, data, minutes, output)


def in_own_process(function: Callable[..., None], *arguments: object) -> None:
    """Call a function in a new process, which has spent no time yet."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{function.__name__}: ended with {process.exitcode}")


def picture(ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(H, W) uint8: bright discs, each of its own brightness, on a dark and noisy ground."""
    brightness = np.concatenate([[40], rng.uniform(110, 200, int(ids.max()))]).astype(np.float32)
    pixels = np.empty(ids.shape, np.uint8)
    for top in range(0, len(ids), STRIP):
        rows = brightness[ids[top : top + STRIP]]
        rows += rng.normal(0, 6, rows.shape).astype(np.float32)
        pixels[top : top + STRIP] = rows.clip(0, 255)
    return pixels


def write_disc_images(folder: Path) -> None:
    """Training images of discs, and the large one, each with its label image."""
    if (folder / "large" / "masks" / "discs.tif").exists():
        return
    for name in ("data/images", "data/masks", "large/images", "large/masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    share = (TRAINING_SIDE / SIDE) ** 2
    for index in range(TRAINING_IMAGES):
        rng = np.random.default_rng([1, index])
        # label images of equally many objects would be taken for classes
        ids = draw_discs(rng, TRAINING_SIDE, int(share * DISCS) - index % FEWER)
        Image.fromarray(picture(ids, rng)).save(folder / "data" / "images" / f"{index:02}.png")
        Image.fromarray(ids.astype(np.uint16)).save(folder / "data" / "masks" / f"{index:02}.png")
    rng = np.random.default_rng(0)
    ids = draw_discs(rng, SIDE, DISCS)
    options = {"tile": (256, 256), "compression": "zlib"}
    tifffile.imwrite(folder / "large" / "images" / "discs.tif", picture(ids, rng), **options)
    tifffile.imwrite(folder / "large" / "masks" / "discs.tif", ids, **options)


def run(*words: str | Path) -> tuple[float, float, float]:
    """Run a script on one thread: its seconds, those of the processor, and its largest memory in GB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, *map(str, words)], cwd=ROOT, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    if status:
        raise SystemExit(f"{words[0]} ended with {os.waitstatus_to_exitcode(status)}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9


def measure_trained_discs(folder: Path, minutes: float) -> None:
    folder = folder.resolve()
    write_disc_images(folder)
    model = folder / "run" / "model"
    if not (folder / "run" / "finished.json").exists():
        in_own_process(train_for, minutes, folder / "data", folder / "run")
    predicted = folder / "predicted"
    flags = ["--input", folder / "large" / "images", "--output", predicted, "--overwrite"]
    seconds, processor, memory = run("predict.py", "--model", model, *flags)
    ids = tifffile.imread(folder / "large" / "masks" / "discs.tif")
    numbers = np.asarray(Image.open(predicted / "discs.png")).astype(np.int64)
    values = score(pack_labels(numbers, numbers > 0), ids).values
    share = values["found"] / values["objects"]
    print(f"{values['found']:,.0f} of {values['objects']:,.0f} found at an IoU of 0.5 ({share:.2%}),", end=" ")
    print(f"{values['predicted']:,.0f} predicted; AP@0.5 {values['ap50']:.4f}, AP@0.75 {values['ap75']:.4f}")
    print(f"predict.py: {seconds:.0f} s, {processor:.0f} s of the processor, {memory:.2f} GB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("discs", "maps", "train", "candidates"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    arguments = parser.parse_args()
    Image.MAX_IMAGE_PIXELS = None
    if arguments.what == "discs":
        measure_discs()
    elif arguments.what == "maps":
        measure_maps(arguments.folder)
    elif arguments.what == "train":
        measure_trained_discs(arguments.folder, arguments.minutes)
    else:
        measure_candidates(arguments.only, arguments.data, arguments.minutes, arguments.folder)
