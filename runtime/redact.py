"""Redaction of texts for files and messages.

The query of URLs is removed, since it may give access to data, and so are passwords, which no command takes. Characters
that a terminal acts on or cannot print, which names of files may hold, are escaped.
"""

import re
from collections.abc import Iterable
from typing import Any

# A scheme has at least two letters, since C:/ is a drive. A Path shortens two slashes to one. Files of this machine
# have no query and no password: their names may have any of these characters.
SCHEME = r"\b(?!(?:file|local):)(?P<scheme>[a-z][a-z0-9+.-]{1,20}):/{1,2}"
PASSWORD = re.compile(
    SCHEME
    + r"""(?:
    [^\s/?\#:@\[]* : (?!:|\d*(?:[/\\?\#\s]|$)) (?:[^\s/?\#]*|\S*?)@  # user:password@, where what follows is no port
    | (?<=http://|ttps://)[^\s/?\#]*@                                # a token in place of a user of the web
    )""",
    re.IGNORECASE | re.VERBOSE,
)
QUERY = re.compile(
    rf"(?P<address>{SCHEME}[^\s?#]*|\burl: /[^\s?#]*)"  # "with url: /path?query" is how urllib3 names a URL
    r"(?P<query>[?#]\S*?)(?=['\"`),.;:>\]}]*(?:\s|$))",
    re.IGNORECASE,
)
WEB = re.compile("https?:/|^url: ", re.IGNORECASE)

# control characters, ends of lines, signs without a width or that turn the order of others, and surrogates, which stand
# for bytes of a name that is not UTF-8
UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
MAX_NAME = 24  # characters of a name beside a picture
MAX_TABLE_NAME = 60  # characters of a name in a table on the terminal
MAX_LINE = 5_000  # characters of a line; --classes with 255 values fits


def printable(text: str, keep: str = "") -> str:
    """The text with unprintable characters escaped, such as `\\n`, except the characters to keep."""

    def escaped(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in keep else character.encode("unicode_escape").decode()

    return UNPRINTABLE.sub(escaped, text)


def shorten(text: str, limit: int = MAX_NAME) -> str:
    """The text in at most `limit` characters, without its middle: names that begin alike often differ at their end."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[: half - 1]}…{text[-half:]}"


def table_names(names: Iterable[str]) -> list[str]:
    """Names as the rows of a table on the terminal show them."""
    return [shorten(printable(name), MAX_TABLE_NAME) for name in names]


def shown(text: str, keep: str = "") -> str:
    """A text as it is printed: redacted, unprintable characters escaped except those to keep, long lines cut."""
    lines = printable(redact(text), keep).split("\n")
    return "\n".join(shorten(line, MAX_LINE) for line in lines)


def redact(text: str) -> str:
    """The text without the query, and without `user:password@`, of each URL in it; all other text is unchanged.

    `https://host/path?query` becomes `https://host/path`. The `@` in a path or behind a name of the Hub stays, and so
    does the `?` of a file pattern.
    """
    return QUERY.sub(_remove_query, PASSWORD.sub(r"\g<scheme>://", text))


def redact_all(value: Any) -> Any:
    """A JSON value with each text redacted, except keys."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [redact_all(item) for item in value]
    if isinstance(value, dict):
        return {key: redact_all(item) for key, item in value.items()}
    return value


def _remove_query(match: re.Match[str]) -> str:
    """The URL without its query. Outside of the web only `?name=value` is a query: patterns may have a `?`, too."""
    is_web = match["query"].startswith("?") and WEB.search(match["address"]) is not None
    has_named_value = re.match(r"[?#][^/=]*=", match["query"]) is not None
    return match["address"] if is_web or has_named_value else match[0]
