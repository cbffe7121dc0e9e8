"""Write the built-in data set as a folder of PNG files.

python -m data_utils.shapes OUT [--train 200 --val 40 --seed 0]
"""

if __name__ == "__main__":  # first of all: the imports below take seconds
    from runtime.signals import begin_imports

    begin_imports()


import numpy as np
from PIL import Image

from data_utils.sources.records import Records
from data_utils.sources.shapes import CLASS_NAMES, VAL_FIRST, Shapes
from runtime.cli import Arguments, empty_folder
from runtime.console import say
from runtime.script import run_script
from runtime.settings import reader
from runtime.values import Count, Seed

# a color of each class, as `predict.py` draws them
COLORS = ((0, 0, 0), (61, 155, 242), (208, 242, 61), (223, 61, 242), (61, 242, 170))


def main() -> None:
    parser = Arguments(description="Write the shapes data set as PNG.")
    parser.add_argument("out", type=empty_folder, help="folder to write, absent or empty")
    parser.add_argument(
        "--train", type=reader(Count), default=200, help="number of training pictures (default: %(default)s)"
    )
    parser.add_argument(
        "--val", type=reader(Count), default=40, help="number of validation pictures (default: %(default)s)"
    )
    parser.add_argument("--seed", type=reader(Seed), default=0, help="of the pictures (default: %(default)s)")
    args = parser.parse_args()

    splits = {"train": Shapes(args.train, args.seed), "val": Shapes(args.val, args.seed, VAL_FIRST)}
    for split, rows in splits.items():
        for kind in ("images", "masks"):
            (args.out / split / kind).mkdir(parents=True)
        for record in Records(rows):
            Image.fromarray(np.asarray(record["image"])).save(args.out / split / "images" / f"{record['name']}.png")
            mask = Image.fromarray(np.asarray(record["target"]))
            mask.putpalette(np.ravel(COLORS).tolist())  # makes it a "P" image, indices as they are
            mask.save(args.out / split / "masks" / f"{record['name']}.png")
    say(f"{args.train} + {args.val} pairs in {args.out}; classes: {', '.join(CLASS_NAMES)}")


if __name__ == "__main__":
    run_script(main)
