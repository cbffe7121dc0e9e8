"""Files with bytes changed, for tests of readers."""

from collections.abc import Sequence

from hypothesis import strategies as st

NUMBERS = [b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f"]


@st.composite
def damaged(draw, files: Sequence[bytes], header: int) -> bytes:
    """One of the files with bytes changed, taken out, put in, cut off or taken from another file.

    The first bytes, the header, matter most.
    """
    content = bytearray(draw(st.sampled_from(files)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.one_of(st.integers(0, min(header, len(content))), st.integers(0, len(content))))
        kind = draw(st.sampled_from(["byte", "long", "cut", "remove", "insert", "splice"]))
        if kind == "byte":
            content[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == "long":
            content[at : at + 4] = draw(st.sampled_from(NUMBERS))
        elif kind == "cut":
            del content[at:]
        elif kind == "remove":
            del content[at : at + draw(st.integers(1, 16))]
        elif kind == "insert":
            content[at:at] = draw(st.binary(max_size=16))
        else:
            content[at:] = draw(st.sampled_from(files))[at:]
    return bytes(content)
