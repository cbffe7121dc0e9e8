"""Regions: unions of labels, written as a mask of labels."""

from tasks.kind import TaskKind
from tasks.regions.decode import RegionDecoder
from tasks.regions.loss import Regions
from tasks.regions.reader import RegionReader
from tasks.regions.show import RegionSection
from tasks.regions.write import RegionFormat

KIND = TaskKind(Regions, RegionReader, RegionDecoder, RegionFormat, RegionSection)
