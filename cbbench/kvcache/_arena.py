"""Two ways to place contiguous regions in one arena. Only lengths and starts, no memory."""

from __future__ import annotations


class FirstFit:
    """The lowest hole that is large enough; neighbouring holes join when freed.
    Source: Knuth, The Art of Computer Programming, volume 1, section 2.5."""

    def __init__(self, size: int) -> None:
        self.capacity = size
        self.holes = [(0, size)] if size else []  # (start, size), by start

    def round_up(self, size: int) -> int:
        return size

    def place(self, size: int) -> int | None:
        for index, (start, hole) in enumerate(self.holes):
            if hole >= size:
                self.holes[index : index + 1] = [(start + size, hole - size)] if hole > size else []
                return start
        return None

    def free(self, start: int, size: int) -> None:
        joined: list[tuple[int, int]] = []
        for hole_start, hole in sorted([*self.holes, (start, size)]):
            if joined and sum(joined[-1]) == hole_start:
                joined[-1] = (joined[-1][0], joined[-1][1] + hole)
            else:
                joined.append((hole_start, hole))
        self.holes = joined


class Buddy:
    """Regions of a power of two at multiples of their size; a freed half joins its free buddy.

    An arena that is no power of two is cut into descending powers of two.
    Source: Knowlton, A Fast Storage Allocator (CACM 1965).
    """

    def __init__(self, size: int) -> None:
        self.capacity = size
        self.holes: list[tuple[int, int]] = []
        self.roots: dict[int, int] = {}  # start -> size of the pieces the arena was cut into
        start = 0
        while size:
            piece = 1 << (size.bit_length() - 1)
            self.roots[start] = piece
            self.holes.append((start, piece))
            start, size = start + piece, size - piece

    def round_up(self, size: int) -> int:
        return 1 << (size - 1).bit_length()

    def place(self, size: int) -> int | None:
        fitting = [(hole, start) for start, hole in self.holes if hole >= size]
        if not fitting:
            return None
        hole, start = min(fitting)
        self.holes.remove((start, hole))
        while hole > size:
            hole //= 2
            self.holes.append((start + hole, hole))
        return start

    def free(self, start: int, size: int) -> None:
        root = max(r for r in self.roots if r <= start)
        while size < self.roots[root]:
            buddy = root + ((start - root) ^ size)
            if (buddy, size) not in self.holes:
                break
            self.holes.remove((buddy, size))
            start, size = min(start, buddy), size * 2
        self.holes.append((start, size))
