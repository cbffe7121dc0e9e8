"""What a benchmark computes by a checkout, written to a file or compared with a file or another checkout."""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Numbers = dict[str, dict[str, str]]  # case -> what was computed -> its value or digest


def differences(here: Numbers, there: Numbers) -> Iterator[str]:
    """A line for each number that differs, or that one side alone has."""
    for case in here:
        for name in sorted(here[case].keys() | there.get(case, {}).keys()):
            values = here[case].get(name, "missing"), there.get(case, {}).get(name, "missing")
            if values[0] != values[1]:
                yield f"{case}: {name}: {values[0]} here, {values[1]} there"


def record_or_compare(description: str, measure: Callable[[Path, list[str]], Numbers], cases: list[str]) -> None:
    """The command line of such a benchmark; exits with 1 if anything differs.

    Args:
        measure: computes the numbers of the named cases, of all for no names, by a checkout.
        cases: the names of all cases.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("other", type=Path, help="the file to write, or the file or checkout to compare with")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the checkout that is measured (default: this one)")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", choices=cases)
    args = parser.parse_args()
    if args.action == "compare" and not args.other.exists():
        parser.error(f"{args.other} is not there")
    here = measure(args.checkout.resolve(), args.only)
    count = f"{sum(map(len, here.values()))} values of {len(here)} cases"
    if args.action == "record":
        args.other.write_text(json.dumps(here, indent=1) + "\n")
        print(f"{count} written to {args.other}")
        return
    there = measure(args.other.resolve(), args.only) if args.other.is_dir() else json.loads(args.other.read_text())
    difference_lines = list(differences(here, there))
    print("\n".join(difference_lines) or f"equal: {count}")
    raise SystemExit(1 if difference_lines else 0)
