"""Tables of scores: what a task shows of itself, and how it is printed as text, Markdown and HTML."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runtime.redact import printable, shorten

LONGEST_CELL = 60  # characters of a cell on the terminal
MARKUP = re.compile(r"[\\`*|\[\]~]|(?<![^\W_])_|_(?![^\W_])")  # an underscore within a word is no markup

Row = tuple[str, Mapping[str, Any]]  # its name, and its values by the keys of the columns


class Column(NamedTuple):
    """A score: its key among the values, its title, and the format of its numbers; "" for texts."""

    key: str
    title: str
    format: str = ".4f"

    def text(self, values: Mapping[str, Any]) -> str:
        """The cell of this column: n/a for None, and nothing where there is no such value."""
        value = values.get(self.key, "")
        if value is None:
            return "n/a"
        if value == "":
            return ""
        return format(value, self.format)


class Table(NamedTuple):
    """A table of scores.

    Args:
        title: the heading above it.
        first: the title of the first column, which holds the names of the rows.
        last: a row for all others together, such as their means.
        note: sentences below it.
    """

    title: str
    first: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    last: Row | None = None
    note: str = ""

    def cells(self) -> list[list[str]]:
        """All cells as text, beginning with the titles."""
        rows = list(self.rows)
        if self.last:
            rows.append(self.last)
        lines = [[self.first, *(column.title for column in self.columns)]]
        for name, values in rows:
            lines.append([name, *(column.text(values) for column in self.columns)])
        return lines


def as_text(table: Table) -> str:
    """A table as lines of plain text, in columns that are as wide as their widest cell."""
    titles, *rows = table.cells()
    lines = [titles]
    for name, *cells in rows:
        lines.append([shorten(cell, LONGEST_CELL) for cell in (printable(name), *cells)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for name, *cells in lines:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        texts.append("  ".join([name.ljust(widths[0]), *aligned]).rstrip())
    if table.note:
        texts.append(table.note)
    return "\n".join(texts)


def as_markdown(table: Table) -> str:
    """A table in Markdown, with its note below it."""
    titles, *rows = table.cells()
    lines = [titles, ["---"] + ["---:"] * len(table.columns)]
    for row in rows:
        lines.append(list(map(markdown_text, row)))
    text = ""
    for line in lines:
        text += f"| {' | '.join(line)} |\n"
    if table.note:
        text += f"\n{markdown_text(table.note)}\n"
    return text


def as_html(table: Table, colors: Mapping[str, str]) -> str:
    """A table in HTML, with its note below it.

    Args:
        colors: the color, in CSS, of the square before a name.
    """
    titles, *rows = table.cells()
    head = _html_line("th", list(map(html.escape, titles)))
    body = []
    for name, *cells in rows:
        swatch = ""
        if name in colors:
            swatch = f'<span class="swatch" style="background:{colors[name]}"></span>'
        body.append(_html_line("td", [swatch + html.escape(name), *map(html.escape, cells)]))
    foot = ""
    if table.last:
        foot = f"<tfoot>\n{body.pop()}\n</tfoot>\n"
    body_text = "\n".join(body)
    text = f"<thead>\n{head}\n</thead>\n<tbody>\n{body_text}\n</tbody>\n{foot}"
    note = ""
    if table.note:
        note = f"<p>{html.escape(table.note)}</p>\n"
    return f'<div class="scroll"><table>\n{text}</table></div>\n{note}'


def _html_line(tag: str, cells: Sequence[str]) -> str:
    """A row whose first cell, which is HTML as all are, is a heading."""
    others = ""
    for cell in cells[1:]:
        others += f"<{tag}>{cell}</{tag}>"
    return f'<tr><th scope="row">{cells[0]}</th>{others}</tr>'


def markdown_text(text: str) -> str:
    """The text with escapes, so that it neither ends a table's cell nor becomes markup."""
    escaped = MARKUP.sub(lambda match: f"\\{match[0]}", printable(re.sub(r"\s+", " ", text)))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")
