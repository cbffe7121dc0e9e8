"""Texts as files and messages hold them: without the queries of URLs, and without commands for a terminal.

The query of a URL may give access to data. Passwords in URLs are refused before anything is written.
"""

import re
from typing import Any

PASSWORD = re.compile(
    r"""\b[a-z][a-z0-9+.-]+://(?:
    [^\s/?\#:@\[]* : (?!:|\d*(?:[/?\#]|$)) \S*@  # user:password@, where what follows is no port
    | (?<=http://|ttps://)[^\s/?\#]*@               # a token in place of a user of the web
    )""",
    re.IGNORECASE | re.VERBOSE,
)
# A scheme has at least two letters, since C:/ is a drive. A Path shortens two slashes to one. Outside of the web only
# ?name=value is a query, since patterns of files may have a `?`; files of this machine may have any characters.
QUERY = re.compile(
    r"""(?P<address>
    (?:\bhttps?:/{1,2} | \burl:\ /)[^\s?\#]*(?=\?)      # "with url: /path?query" is how urllib3 names a URL
    | \b(?!(?:file|local):)[a-z][a-z0-9+.-]+:/{1,2}[^\s?\#]*(?=[?\#][^\s/=]*=)
    )\S*?(?=['"`),.;:>\]}]*(?:\s|$))                    # the signs behind it belong to the sentence
    """,
    re.IGNORECASE | re.VERBOSE,
)

# control characters, ends of lines, signs without a width or that turn the order of others, and surrogates, which stand
# for bytes of a name that is not UTF-8
UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
MAX_NAME = 24  # characters of a name beside a picture
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


def shown(text: str, keep: str = "") -> str:
    """A text as it is printed: redacted, unprintable characters escaped except those to keep, long lines cut."""
    lines = printable(redact(text), keep).split("\n")
    return "\n".join(shorten(line, MAX_LINE) for line in lines)


def redact(text: str) -> str:
    """The text without the query of each URL in it: `https://host/path?query` becomes `https://host/path`."""
    return QUERY.sub(r"\g<address>", text)


def redact_all(value: Any) -> Any:
    """A JSON value with each text redacted, except keys; bytes of names that are not UTF-8 are escaped."""
    if isinstance(value, str):
        return redact(value).encode(errors="backslashreplace").decode()
    if isinstance(value, list):
        return [redact_all(item) for item in value]
    if isinstance(value, dict):
        return {key: redact_all(item) for key, item in value.items()}
    return value
