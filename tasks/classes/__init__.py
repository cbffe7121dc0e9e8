"""The class of each pixel."""

from tasks.classes.loss import Classes
from tasks.classes.reader import ClassReader
from tasks.classes.show import ClassSection
from tasks.classes.write import ClassFormat
from tasks.kind import TaskKind

KIND = TaskKind(Classes, ClassReader, ClassSection, ClassFormat)
