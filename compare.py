"""Compare training runs: which settings differ, how far their scores are apart, and whether that says which is better.

python compare.py runs/*
"""

if __name__ == "__main__":  # first of all: the imports below take seconds
    from runtime.signals import begin_imports

    begin_imports()


import argparse
from pathlib import Path

from runtime.cli import Arguments, check_free
from runtime.console import say
from runtime.errors import DataError, SettingsError
from runtime.script import run_script
from runtime.settings import reader
from tasks.tables import as_text
from train_utils.comparison.differences import compare_recipes
from train_utils.comparison.page import write_page
from train_utils.comparison.recipes import group_runs, read_runs, recipe_table, settings_table


def parse_args(description: str) -> argparse.Namespace:
    parser = Arguments(description, usage="python compare.py RUN RUN ... [--output FILE] [--overwrite]")
    parser.add_argument("runs", nargs="+", type=reader(Path), metavar="RUN", help="output folder of train.py")
    page = "the page to write (default: %(default)s)"
    parser.add_argument("--output", type=reader(Path), default=Path("comparison.html"), metavar="FILE", help=page)
    parser.add_argument("--overwrite", action="store_true", help="replace the page that is there")
    return parser.parse_args()


def main() -> None:
    args = parse_args(__doc__)
    check_free(f"--output {args.output}", [args.output], overwrite=args.overwrite)

    # 1. Runs: from the files in their folders; no data set and no model is opened
    runs, lines = read_runs(args.runs)
    if not runs:
        raise DataError("; ".join([*lines, "no run is left to compare; give output folders of train.py, as runs/*"]))

    # 2. Recipes: runs that differ only by seed and fold belong together
    recipes = group_runs(runs)
    tables = [recipe_table(recipes), settings_table(recipes)]
    sentences, remarks = compare_recipes(recipes)
    lines += remarks
    if len(recipes) == 1:
        lines.append("all runs are of one recipe, by seed and fold: their spread is what another one has to exceed")

    # 3. Report: on the terminal, and as a page
    for line in lines:
        say(line)
    say("\n\n".join(as_text(table) for table in tables if table.rows))
    for sentence in sentences:
        say(sentence)
    try:
        write_page(args.output, recipes, tables, sentences, lines)
    except OSError as error:
        raise SettingsError(f"--output {args.output} cannot be written ({error.strerror}); choose another") from error
    say(f"page in {args.output.resolve()}")


if __name__ == "__main__":
    run_script(main)
