"""What a reader sees of a report and of a model card: text, tables, pictures, the line that predicts, the tags."""

import base64
import io
import re
from collections.abc import Sequence
from html import unescape
from html.parser import HTMLParser

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from data_utils.class_map import ClassMap
from tasks.classes.reader import ClassReader
from tasks.classes.scores import ClassScores
from tasks.classes.show import ClassSection


def charts_of(html: str) -> list[str]:
    """The SVG of each chart of a page."""
    contents = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    return [base64.b64decode(content).decode() for content in contents]


class Page(HTMLParser):
    """Tags with their attributes, and the text, of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += f"{data}\n"

    def attributes(self, tag: str, name: str) -> list[str]:
        return [attributes[name] for found, attributes in self.tags if found == tag and name in attributes]


def text_line(html: str) -> str:
    """The words of a page without its style sheet, in one line."""
    text = re.sub(r"<[^>]+>", " ", html.partition("</style>")[2] or html)
    return unescape(re.sub(r"\s+", " ", text))


def embedded_picture(source: str) -> Image.Image:
    """The picture that a page holds at this source."""
    return Image.open(io.BytesIO(base64.b64decode(re.sub(r"^data:image/(png|jpeg);base64,", "", source))))


def noise(*shape: int) -> np.ndarray:
    """A noisy color picture."""
    return np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)


def class_section(names: Sequence[str]) -> ClassSection:
    """The section of classes whose masks hold 0, 1 and so on."""
    return ClassSection(ClassReader(ClassMap(tuple(names), tuple(range(len(names))), None)))


def class_scores(names: Sequence[str], matrix: Tensor) -> ClassScores:
    """Scores of classes from their confusion matrix, of no image alone."""
    return ClassScores(tuple(names), matrix, torch.zeros(0, 1))
