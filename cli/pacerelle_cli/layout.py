"""Tables: cells in, lines out. Cells are escaped already."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

_GAP = "  "
_LEAST = 20  # columns of the terminal that are left of a text that is shortened
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"

Row = Sequence[str]


def laid_out(headers: Row, rows: Sequence[Row], width: int | None, *, bold: bool = False) -> Iterator[str]:
    """Aligned columns. With `width` (columns of a terminal) texts are shortened until they fit.

    What is one word, such as an id or a path, stays whole, since somebody may want to copy it; if the rest does not fit
    then, each row becomes a block of lines.
    """
    strong, end = (_BOLD, _PLAIN) if bold else ("", "")
    widths = [max(map(cells, column)) for column in zip(headers, *rows, strict=True)]
    if width is not None and (fitting := _fitted(widths, headers, rows, width)) is None:
        for number, row in enumerate(rows):
            if number:
                yield ""
            for header, cell in zip(headers, row, strict=True):
                yield f"{strong}{header.lower()}:{end} {cell}"
        return
    if width is not None and fitting is not None:
        widths = fitting
    yield f"{strong}{_line(headers, widths)}{end}"
    yield from (_line(row, widths) for row in rows)


def cells(text: str) -> int:
    """The columns of a terminal that a text takes: none for what combines with others, two for wide characters."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def shortened(text: str, width: int) -> str:
    """The beginning of a text that is too wide, with an ellipsis."""
    if cells(text) <= width:
        return text
    kept, left = "", width - 1
    for character in text:
        left -= _columns(character)
        if left < 0:
            break
        kept += character
    return kept + "…"


def _fitted(widths: Sequence[int], headers: Row, rows: Sequence[Row], width: int) -> list[int] | None:
    """Smaller widths with which all fits; None if there are none."""
    least = [
        max(cells(header), max((cells(c) if " " not in c else min(cells(c), _LEAST) for c in column), default=0))
        for header, *column in zip(headers, *rows, strict=True)
    ]
    found, over = list(widths), sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while over > 0:
        room = [have - need for have, need in zip(found, least, strict=True)]
        if max(room) <= 0:
            return None
        widest = max((number for number, spare in enumerate(room) if spare > 0), key=lambda number: found[number])
        found[widest] -= 1
        over -= 1
    return found


def _line(row: Row, widths: Sequence[int]) -> str:
    shown = [shortened(cell, width) for cell, width in zip(row, widths, strict=True)]
    padded = (cell + " " * (width - cells(cell)) for cell, width in zip(shown, widths, strict=True))
    return _GAP.join(padded).rstrip()


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
