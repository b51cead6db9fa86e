"""CSV files with rows larger than Arrow's block, at which Arrow would stop.

Few files have such rows. Finding where rows begin and end takes three times as long as reading them.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

_CHUNK = 1 << 20
# Outside quotes: the end of a row, a quote that begins a field, a comma at the end of the chunk.
_SPECIAL = re.compile(rb'[\r\n]|,(?:"|\Z)')
_BOM = b"\xef\xbb\xbf"


class LongRow(NamedTuple):
    """A row that is left out because of its size.

    Attributes:
        after: number of preceding rows that are not left out, including the header.
        line: the line on which the row begins.
        text: the beginning of the row.
    """

    after: int
    line: int
    text: str


class RowFilter(io.RawIOBase):
    """The bytes of a CSV file without the rows that are too large.

    Attributes:
        left_out: the rows left out so far, which the reader removes once reported.
        last_line: the line on which the last row read begins.
    """

    def __init__(self, source: IO[bytes], longest: int, excerpt: int) -> None:
        """
        Args:
            longest: rows of more bytes are left out.
            excerpt: bytes to keep of each row that is left out.
        """
        self.source, self.longest, self.excerpt = source, longest, excerpt
        self._lines: deque[int] = deque()
        self.left_out: deque[LongRow] = deque()
        self._ready = bytearray()
        self._row = bytearray()
        self._size = self._rows = 0
        self._line = self._begins = self.last_line = 1
        self._last = b""
        self._quoted = self._closed = False
        self._at_field = self._is_first = True

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """See `io.RawIOBase`."""
        while not self._ready:
            chunk = self.source.read(_CHUNK)
            if not chunk:
                self._end_row()
                break
            self._scan(chunk)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        del self._ready[:count]
        return count

    @property
    def ends_in_quotes(self) -> bool:
        """Whether the last row read contains an unclosed quote."""
        return self._quoted

    def lines(self) -> Iterator[int]:
        """Yield the line on which each row begins that was read and not left out, the header first."""
        while True:
            yield self._lines.popleft()

    def _scan(self, chunk: bytes) -> None:
        begin = at = 0
        if self._is_first:
            self._is_first, at = False, len(_BOM) if chunk.startswith(_BOM) else 0
        while at < len(chunk):
            if self._quoted:
                quote = chunk.find(b'"', at)
                self._quoted, self._closed = quote < 0, quote >= 0
                at = quote + 1 or len(chunk)
                continue
            if (self._closed or self._at_field) and chunk[at] == 34:
                # A quote at the start of a field, or a doubled quote, which does not end the field.
                self._quoted, self._closed, self._at_field = True, False, False
                at += 1
                continue
            self._closed = self._at_field = False
            special = _SPECIAL.search(chunk, at)
            if special is None:
                break
            at = special.end()
            if special[0] == b',"':
                self._quoted = True
            else:
                self._at_field = True
                if special[0] != b",":
                    self._add(chunk[begin:at])
                    self._end_row()
                    begin = at
        self._add(chunk[begin:])

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self.longest:
            self._row += part
        else:
            self._row = (self._row + part[: self.excerpt])[: self.excerpt]
        ends = part.count(b"\n") + part.count(b"\r") - part.count(b"\r\n")
        self._line += ends - (self._last == b"\r" and part[:1] == b"\n")
        self._last = part[-1:] or self._last

    def _end_row(self) -> None:
        is_blank = self._size <= 2 and not self._row.strip(b"\r\n")
        if self._size > self.longest:
            text = self._row.decode("utf-8", "backslashreplace")
            self.left_out.append(LongRow(self._rows, self._begins, text))
        else:
            self._ready += self._row
            if not is_blank:
                self._lines.append(self._begins)
                self._rows += 1
        self._row, self._size = bytearray(), 0
        self.last_line, self._begins = self._begins, self._line
