"""The templates of the report and of the model card, and the text form of values in them."""

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.redact import printable
from tasks.confusion import score_text

if TYPE_CHECKING:
    from jinja2 import Environment

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


def page_bytes(page: str) -> bytes:
    """The bytes of a page's file; what a browser cannot show, such as ESC in a name, is escaped."""
    return printable(page, keep="\n\t").encode()


def markdown_text(text: str) -> str:
    """The text with escapes, so that it neither ends a table's cell nor becomes markup."""
    escaped = MARKUP.sub(lambda match: f"\\{match[0]}", printable(re.sub(r"\s+", " ", text)))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")
