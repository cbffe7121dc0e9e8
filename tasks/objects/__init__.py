"""Numbered objects, which may touch."""

from tasks.kind import TaskKind
from tasks.objects.loss import Objects
from tasks.objects.reader import ObjectReader
from tasks.objects.show import ObjectSection
from tasks.objects.write import ObjectFormat

KIND = TaskKind(Objects, ObjectReader, ObjectSection, ObjectFormat)
