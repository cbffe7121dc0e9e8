"""The templates of pages and of the model card, and the text form of values in them."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.files import replace_file
from runtime.redact import printable
from tasks.confusion import score_text
from tasks.tables import as_html, markdown_text
from train_utils.reporting.embedding import MAX_SIDE, embed_all

if TYPE_CHECKING:
    from jinja2 import Environment

PICTURES_BYTES = 3_600_000  # of a page's pictures: with all else, it is small enough for a mail
TEMPLATES = Path(__file__).parent / "templates"

Views = Mapping[Any, Mapping[str, np.ndarray]]  # groups of labeled pictures, (H, W, 3) uint8, by title


def render(template: str, **values: object) -> str:
    """Fill in a template of `templates/`; values in HTML are escaped, and a missing value is an error."""
    return _templates().get_template(template).render(values)


@functools.cache
def _templates() -> "Environment":
    """The templates, each compiled when it is used first."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape  # not needed at start-up

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html.jinja"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(score=score_text, markdown=markdown_text, html=as_html)
    return environment


def write_html(file: Path, template: str, views: Views, *, side: int = MAX_SIDE, **values: object) -> None:
    """Write a page of at most about four megabytes. Raises OSError.

    Args:
        views: shown as large as the page has room for; the template gets the sources of the images in their place.
        side: the most pixels of a picture's longer side.
        values: the other values of the template.
    """
    pictures: list[np.ndarray] = []
    for group in views.values():
        pictures.extend(group.values())
    sources = iter(embed_all(pictures, PICTURES_BYTES, side))
    embedded = {title: {label: next(sources) for label in group} for title, group in views.items()}
    page = render(template, **values, views=embedded)
    with replace_file(file) as output:
        # what a browser cannot show, such as ESC in a name, is escaped
        output.write(printable(page, keep="\n\t").encode())


def plain_text(value: object) -> str:
    """A setting as text: lists without brackets."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)
