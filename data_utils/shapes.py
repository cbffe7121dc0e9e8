"""Write the built-in data set as a folder of PNG files.

python -m data_utils.shapes OUT [--train 200 --val 40 --seed 0]
"""

if __name__ == "__main__":  # first of all: the imports below take seconds
    from runtime.interrupts import end_at_interrupt

    end_at_interrupt()


import numpy as np
from PIL import Image

from data_utils.sources.shapes import CLASS_NAMES, VAL_FIRST, Shapes
from data_utils.visualize import palette
from runtime import cli
from runtime.console import say
from runtime.script import run_script


def main() -> None:
    parser = cli.Arguments(description="Write the shapes data set as PNG.")
    parser.add_argument("out", type=cli.empty_folder, help="folder to write, absent or empty")
    parser.add_argument("--train", type=cli.non_negative_int, default=200, help="number of training pictures")
    parser.add_argument("--val", type=cli.non_negative_int, default=40, help="number of validation pictures")
    parser.add_argument("--seed", type=cli.seed_number, default=0, help="of the pictures")
    args = parser.parse_args()

    colors = palette(len(CLASS_NAMES)).ravel().tolist()
    splits = {"train": Shapes(args.train, args.seed), "val": Shapes(args.val, args.seed, VAL_FIRST)}
    for split, records in splits.items():
        for kind in ("images", "masks"):
            (args.out / split / kind).mkdir(parents=True)
        for record in records:
            Image.fromarray(np.asarray(record["image"])).save(args.out / split / "images" / f"{record['name']}.png")
            mask = Image.fromarray(np.asarray(record["target"]))
            mask.putpalette(colors)  # makes it a "P" image, indices as they are
            mask.save(args.out / split / "masks" / f"{record['name']}.png")
    say(f"{args.train} + {args.val} pairs in {args.out}; classes: {', '.join(CLASS_NAMES)}")


if __name__ == "__main__":
    run_script(main)
