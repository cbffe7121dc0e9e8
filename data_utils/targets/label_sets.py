"""Which classes of a task an image is labeled for, from the names that label files hold."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from data_utils.class_names import NamedClasses, no_such_class
from data_utils.mask_values import value_text
from data_utils.sources.records import LabelSet
from runtime.errors import DataError
from unet.config import MaskValue


@dataclass(frozen=True)
class LabelSets:
    """The different sets of classes that the images of a data set are labeled for.

    Args:
        flags: for each set, whether an image is labeled for each class; the first set has all classes.
        numbers: set of names -> its index in `flags`.
        location: the first place that lists a set without some of the classes; empty if there is none.
    """

    flags: tuple[tuple[bool, ...], ...]
    numbers: Mapping[LabelSet, int]
    location: str = ""

    @classmethod
    def from_names(
        cls,
        place_by_set: Mapping[LabelSet, str],
        names: Sequence[str],
        values: Sequence[Sequence[MaskValue]],
        file_classes: NamedClasses,
        background: int | None = None,
    ) -> "LabelSets":
        """The label sets of a task, from the names in label files.

        A class is known by its name, by its mask values, and by the names that the data set gives to these. If a class
        has several values, an image is labeled for it if it is labeled for each value.

        Args:
            place_by_set: the sets, each with the place that lists it.
            names: the names of the classes.
            values: the mask values of each class.
            file_classes: mask value and name of the classes that the data set names.
            background: the index of the class of all other pixels, if there is one.

        Raises DataError, with the place, for names of no class.
        """
        words: dict[MaskValue, set[str]] = defaultdict(set)
        for value in chain.from_iterable(values):
            words[value].add(value_text(value))
        for value, name in file_classes:
            words[value].add(name)
        known_names = {*names}.union(*words.values())
        flags = [(True,) * len(names)]
        numbers: dict[LabelSet, int] = {}
        for labeled_for, location in place_by_set.items():
            for name in sorted({*labeled_for} - known_names):
                raise DataError(f"{location}: {no_such_class(name, names, known_names)}")
            labeled = []
            for name, class_values in zip(names, values, strict=True):
                is_labeled = [not words[value].isdisjoint(labeled_for) for value in class_values]
                labeled.append(name in labeled_for or all(is_labeled))
            if background is not None:  # known if all other classes are, whatever a file lists
                labeled[background] = True
                labeled[background] = all(labeled)
            if tuple(labeled) not in flags:
                flags.append(tuple(labeled))
            numbers[labeled_for] = flags.index(tuple(labeled))
        label_files = [location for labeled_for, location in place_by_set.items() if numbers[labeled_for] > 0]
        return cls(tuple(flags), numbers, label_files[0] if label_files else "")

    def number(self, labeled_for: LabelSet | None) -> int:
        """The index of the set of an image that is labeled for classes of these names; None stands for all classes."""
        return 0 if labeled_for is None else self.numbers[labeled_for]

    def flags_of(self, labeled_for: LabelSet | None) -> tuple[bool, ...]:
        """For each class, whether an image with this label set is labeled for it."""
        return self.flags[self.number(labeled_for)]
