"""Classes that may overlap: several for each pixel."""

from tasks.kind import TaskKind
from tasks.overlapping.decode import OverlapDecoder
from tasks.overlapping.loss import Overlapping
from tasks.overlapping.reader import OverlapReader
from tasks.overlapping.show import OverlapSection
from tasks.overlapping.write import OverlapFormat

KIND = TaskKind(Overlapping, OverlapReader, OverlapDecoder, OverlapFormat, OverlapSection)
