"""Classes that may overlap, several for each pixel; and regions, unions of labels that are written as a label map."""

from tasks.kind import TaskKind
from tasks.overlapping.loss import Overlapping, Regions
from tasks.overlapping.reader import OverlapReader, RegionReader
from tasks.overlapping.show import OverlapSection, RegionSection
from tasks.overlapping.write import OverlapFormat, RegionFormat

KIND = TaskKind(Overlapping, OverlapReader, OverlapSection, OverlapFormat)
REGIONS = TaskKind(Regions, RegionReader, RegionSection, RegionFormat)
