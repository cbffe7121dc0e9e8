"""What incomplete labels cost: halves of CamVid that lack half of the classes each, and strokes on ISBI 2012.

python benchmarks/partly_labeled.py DATA RESULTS --steps 600 --seeds 0 1 2

DATA holds the folders `camvid` and `isbi2012` (benchmarks/sets.py). Into RESULTS are written

camvid-full          all images labeled for all classes
camvid-halves        half of the training images without the even classes, half without the odd ones, and a classes.csv
                     that says so; what lies there holds the value of a background, which no validation mask has
camvid-background    the same without classes.csv: what is not labeled counts as background
isbi-full            all pixels labeled
isbi-strokes         3% of the training pixels labeled, by strokes that stay in one class; the others hold 128, unknown

CamVid is written at a third of its size, ISBI at half, so that a run is short. A run is made for each set and seed, of
equally many steps, and its scores are a line in RESULTS/scores.jsonl; what stands there is not trained again.
Validation masks are complete everywhere. The table shows the mean IoU over the real classes, the share of the gap
between `background` and `full` that `halves` closes, and the share of the full score that strokes keep.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "cyclist")
VOID = 11  # of CamVid: nobody knows
BACKGROUND = 12  # what is not labeled
UNKNOWN = 128  # of strokes
STROKE_SHARE = 0.03
STROKE_LENGTH = 40  # pixels
STROKE_RADIUS = 1
CAMVID = "camvid-full", "camvid-halves", "camvid-background"
ISBI = "isbi-full", "isbi-strokes"
CAMVID_CLASSES = ",".join(f"{value}={name}" for value, name in enumerate(NAMES)) + f",{BACKGROUND}=background"
FLAGS = {
    "camvid": ["--classes", CAMVID_CLASSES, "--ignore-index", str(VOID)],
    "isbi": ["--classes", "0=membrane,255=cell", "--ignore-index", str(UNKNOWN)],
}
COMMON = ["--plan", "none", "--tracker", "none", "--num-workers", "0", "--block", "residual", "--base-channels", "8"]
COMMON += ["--batch-size", "2", "--eval-every", "1000000", "--log-every", "100"]


def write_camvid(data: Path, results: Path) -> None:
    """The three sets of CamVid."""
    for part in ("train", "val"):
        for number, file in enumerate(sorted((data / "camvid" / part / "images").iterdir())):
            image = smaller(Image.open(file), 3)
            mask = smaller(Image.open(data / "camvid" / part / "masks" / f"{file.stem}.png"), 3)
            labeled = range(number % 2, len(NAMES), 2)
            is_kept = np.isin(mask, [*labeled, VOID])
            for name in CAMVID:
                is_whole = part == "val" or name == "camvid-full"
                save(results / name / part, file.stem, image, mask if is_whole else np.where(is_kept, mask, BACKGROUND))
            if part == "train":
                with (results / "camvid-halves" / part / "classes.csv").open("a") as table:
                    if number == 0:
                        print("image,classes", file=table)
                    print(file.stem, ";".join(NAMES[value] for value in labeled), sep=",", file=table)


def write_isbi(data: Path, results: Path) -> None:
    """Both sets of ISBI: the first 24 slices train, the last six validate."""
    for number, file in enumerate(sorted((data / "isbi2012" / "images").iterdir())):
        part = "train" if number < 24 else "val"
        image = smaller(Image.open(file), 2)
        mask = smaller(Image.open(data / "isbi2012" / "masks" / file.name), 2)
        strokes = draw_strokes(mask, np.random.default_rng(number)) if part == "train" else mask
        save(results / "isbi-full" / part, file.stem, image, mask)
        save(results / "isbi-strokes" / part, file.stem, image, strokes)


def smaller(picture: Image.Image, factor: int) -> np.ndarray:
    """The pixels of a picture: means of blocks of colors or greys, and of a mask the middle of each block."""
    pixels = np.array(picture)
    if len(np.unique(pixels)) <= BACKGROUND:
        return pixels[factor // 2 :: factor, factor // 2 :: factor]
    return np.array(picture.reduce(factor))


def save(folder: Path, stem: str, image: np.ndarray, mask: np.ndarray) -> None:
    """Write an image and its mask."""
    for kind, pixels in (("images", image), ("masks", mask)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / kind / f"{stem}.png")


def draw_strokes(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A mask (H, W) of which only wandering strokes are left, as many that start in each class."""
    strokes = np.full_like(mask, UNKNOWN)
    values = np.unique(mask)
    while (strokes != UNKNOWN).mean() < STROKE_SHARE:
        for value in values:
            row, column = rng.choice(np.argwhere(mask == value)).astype(float)
            angle = rng.uniform(0, 2 * np.pi)
            for _ in range(STROKE_LENGTH):
                y, x = round(row), round(column)
                if not (0 <= y < mask.shape[0] and 0 <= x < mask.shape[1]) or mask[y, x] != value:
                    break
                rows = slice(max(0, y - STROKE_RADIUS), y + STROKE_RADIUS + 1)
                columns = slice(max(0, x - STROKE_RADIUS), x + STROKE_RADIUS + 1)
                strokes[rows, columns] = np.where(mask[rows, columns] == value, value, strokes[rows, columns])
                angle += rng.normal(0, 0.3)
                row += np.sin(angle)
                column += np.cos(angle)
    return strokes


def train(name: str, results: Path, steps: int, seed: int) -> dict:
    """The last record of a run."""
    output = results / "runs" / f"{name}-{steps}-{seed}"
    flags = [*FLAGS[name.partition("-")[0]], *COMMON, "--max-steps", str(steps), "--seed", str(seed)]
    flags += ["--checkpoint-every", str(steps), "--resume", "auto"]
    command = [sys.executable, str(ROOT / "train.py"), "--dataset", str(results / name), "--output-dir", str(output)]
    subprocess.run([*command, *flags], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])


def real_classes_mean(record: dict) -> float:
    """Mean IoU over the classes that validation masks hold."""
    values = []
    for key, value in record.items():
        if key.startswith("eval/iou/") and key != "eval/iou/background":
            values.append(value or 0.0)
    return statistics.mean(values)


def table(lines: list[dict]) -> str:
    """The scores of each set, and what they say of incomplete labels."""
    texts = []
    means: dict[str, float] = {}
    for name in (*CAMVID, *ISBI):
        scores = [line["mean_iou"] for line in lines if line["set"] == name]
        if scores:
            means[name] = statistics.mean(scores)
            texts.append(f"{name:<18} {means[name]:.4f}  ({', '.join(f'{score:.4f}' for score in scores)})")
    if means.keys() >= {*CAMVID}:
        full, halves, background = (means[name] for name in CAMVID)
        texts.append(f"share of the gap that is closed: {(halves - background) / (full - background):.0%}")
    if means.keys() >= {*ISBI}:
        full, strokes = (means[name] for name in ISBI)
        texts.append(f"share of the score that strokes keep: {strokes / full:.1%}")
    return "\n".join(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--sets", nargs="+", choices=(*CAMVID, *ISBI), default=[*CAMVID, *ISBI])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = parser.parse_args()
    if not (args.results / CAMVID[0]).exists():
        write_camvid(args.data, args.results)
    if not (args.results / ISBI[0]).exists():
        write_isbi(args.data, args.results)
    file = args.results / "scores.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for seed in args.seeds:
        for name in args.sets:
            key = {"set": name, "steps": args.steps, "seed": seed}
            if any(key.items() <= line.items() for line in lines):
                continue
            lines.append(key | {"mean_iou": real_classes_mean(train(name, args.results, args.steps, seed))})
            with file.open("a") as stream:
                stream.write(json.dumps(lines[-1]) + "\n")
    print(table([line for line in lines if line["steps"] == args.steps]))


if __name__ == "__main__":
    main()
