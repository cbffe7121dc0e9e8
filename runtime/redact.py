"""Redaction of texts for files and messages.

The user, the password and the query of URLs are removed, since they may give access to data. Characters that a terminal
acts on or cannot print, which names of files may hold, are escaped.
"""

import re
from typing import Any

# A scheme has at least two letters, since C:/ is a drive. A Path shortens two slashes to one.
SCHEME = r"\b(?P<scheme>[a-z][a-z0-9+.-]{1,20}):/{1,2}"
USER = re.compile(
    SCHEME
    + r"""(?P<user>
    [^\s/?\#:@]*:[^/?\#\n]*@                              # user:password@
    | [^\s/?\#]*@                                         # user@
    | [^\s/?\#:@\[]*:(?!:|\d*(?:[/\\?\#\s]|$))\S*@        # a password with / ? or #: what follows the colon is no port
    )""",
    re.IGNORECASE | re.VERBOSE,
)
QUERY = re.compile(
    rf"(?P<head>(?:{SCHEME}|\burl: /)(?:(?!://)[^?#\n])*)"  # "with url: /path?query" is how urllib3 names a URL
    r"(?P<query>[?#](?=\S)\S*?)(?=['\"`),.;:>\]}]*(?:\s|$))",
    re.IGNORECASE,
)
NAMED_URL = "url: "
NAMED_BEFORE_AT = ("abfs", "abfss", "az", "file", "hf")  # a container, folder or repository; a password has a colon


# control characters, ends of lines, and surrogates, which stand for bytes of a name that is not UTF-8
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def printable(text: str, keep: str = "") -> str:
    """The text with unprintable characters escaped, such as `\\n`, except the characters to keep."""

    def escaped(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in keep else character.encode("unicode_escape").decode()

    return UNPRINTABLE.sub(escaped, text)


def redact(text: str) -> str:
    """The text without the user, password and query of each URL in it; all other text is unchanged.

    `scheme://user:password@host/path?query` becomes `scheme://host/path`. The `@` in a path or behind a name of the Hub
    stays, and so does the `?` of a file pattern.
    """
    return QUERY.sub(_remove_query, USER.sub(_remove_user, text))


def redact_all(value: Any) -> Any:
    """A JSON value with each text redacted, except keys."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [redact_all(item) for item in value]
    if isinstance(value, dict):
        return {key: redact_all(item) for key, item in value.items()}
    return value


def _remove_user(match: re.Match[str]) -> str:
    if match["scheme"].lower() in NAMED_BEFORE_AT and ":" not in match["user"]:
        return match[0]
    return match[0].removesuffix(match["user"])


def _remove_query(match: re.Match[str]) -> str:
    """The URL without its query. Outside of the web only `?name=value` is a query: patterns may have a `?`, too."""
    head = match["head"]
    query = match["query"]
    is_named = head.lower().startswith(NAMED_URL)
    address = head[len(NAMED_URL) :] if is_named else head
    is_web = (is_named or head.lower().startswith("http")) and "?" in query and " " not in address
    has_named_value = re.match(r"[?#][^/=]*=", query) is not None
    return head if is_web or has_named_value else match[0]
