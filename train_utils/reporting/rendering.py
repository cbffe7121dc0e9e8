"""The templates of pages and of the model card, and the text form of values in them."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.files import replace_file
from runtime.redact import printable
from tasks.confusion import score_text
from train_utils.reporting.embedding import MAX_SIDE, Embedded, embed_all

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_PAGE = 4_000_000  # bytes: small enough for a mail
FIGURE_BYTES = 1_000  # a picture's label and markup, at most
TEMPLATES = Path(__file__).parent / "templates"
MARKUP = re.compile(r"[\\`*|\[\]~]|(?<![^\W_])_|_(?![^\W_])")  # an underscore within a word is no markup


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
    environment.filters.update(score=score_text, markdown=markdown_text)
    return environment


def write_html(
    file: Path,
    template: str,
    views: Mapping[Any, Mapping[str, np.ndarray]],
    *,
    side: int = MAX_SIDE,
    **values: object,
) -> None:
    """Write a page of at most about MAX_PAGE bytes. Raises OSError.

    Args:
        views: groups of labeled pictures, (H, W, 3) uint8, which are shown as large as the page has room for; the
            template gets them as `Embedded`.
        side: the most pixels of a picture's longer side.
        values: the other values of the template.
    """
    pictures: list[np.ndarray] = []
    for group in views.values():
        pictures.extend(group.values())
    page = render(template, **values, views={key: {} for key in views})
    room = MAX_PAGE - len(page_bytes(page)) - FIGURE_BYTES * len(pictures)
    remaining = iter(embed_all(pictures, room, side))
    embedded: dict[Any, dict[str, Embedded]] = {}
    for key, group in views.items():
        embedded[key] = {label: next(remaining) for label in group}
    page = render(template, **values, views=embedded)
    with replace_file(file) as output:
        output.write(page_bytes(page))


def plain_text(value: object) -> str:
    """A setting as text: lists without brackets."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)


def page_bytes(page: str) -> bytes:
    """The bytes of a page's file; what a browser cannot show, such as ESC in a name, is escaped."""
    return printable(page, keep="\n\t").encode()


def markdown_text(text: str) -> str:
    """The text with escapes, so that it neither ends a table's cell nor becomes markup."""
    escaped = MARKUP.sub(lambda match: f"\\{match[0]}", printable(re.sub(r"\s+", " ", text)))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")
