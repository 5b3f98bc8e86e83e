"""Which prompts begin alike: block ids as a prefix tree, checked, and told apart where sharing ends."""

from __future__ import annotations

from collections.abc import Iterable

from cbbench.workload.prompts import FIRST_TOKENS, PromptRecipe, first_code

STRIDE = 1 << 40  # a block's id plus a multiple of this is another name for it
TAIL = 1 << 39  # ids from here on name the unshared ends of prompts


class PrefixTree:
    """Every block id has one block before it. Siblings get ids whose first tokens differ, so that sharing ends exactly
    at the block's edge; an id is changed only where its hash collides with an earlier sibling's, and then by a multiple
    of STRIDE. That depends on earlier rows of the file alone, so rows before a window pass through here too."""

    def __init__(self, recipe: PromptRecipe) -> None:
        self.recipe = recipe
        self._known: dict[tuple[str, int], tuple[int, int]] = {}  # (scope, id) -> the id before it, the id it goes by
        self._codes: dict[tuple[str, int], set[int] | int] = {}  # (scope, id) -> first codes of the blocks behind it
        self.collisions = 0  # siblings that still begin alike: more than there are first tokens

    def place(self, scope: str, blocks: Iterable[int], must_be_tree: bool = True) -> list[int]:
        """The ids that a prompt's blocks go by. Raises ValueError where an id has two parents and must not."""
        placed = []
        before = -1
        for block in blocks:
            known = self._known.get((scope, block))
            if known is None:
                known = self._known[scope, block] = (before, self._told_apart(scope, before, block))
            elif known[0] != before and must_be_tree:
                raise ValueError(f"block {block} stands behind {_name(before)}, before it stood behind {_name(known[0])}")
            placed.append(known[1])
            before = block
        return placed

    def _told_apart(self, scope: str, before: int, block: int) -> int:
        """The first of block, block + STRIDE, ... that begins unlike its siblings."""
        taken = self._codes.get((scope, before))
        code = first_code(self.recipe, scope, block)
        if taken is None:
            self._codes[scope, before] = code
            return block
        if isinstance(taken, int):
            self._codes[scope, before] = taken = {taken}
        if len(taken) >= FIRST_TOKENS:
            self.collisions += 1
            return block
        while code in taken:
            block += STRIDE
            code = first_code(self.recipe, scope, block)
        taken.add(code)
        return block


def _name(block: int) -> str:
    return "nothing" if block < 0 else str(block)


Blocks = Iterable[tuple[tuple[str, int], int]]  # (scope, id) and tokens of each block of a prompt


class PrefixHits:
    """What a prefix cache without limits would have found: tokens of leading blocks seen before."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], int] = {}
        self.hit_tokens = 0

    def add(self, blocks: Blocks) -> None:
        leading = True
        for name, size in blocks:
            before = self._seen.get(name)
            if before is None or before < size:
                self._seen[name] = size
            if leading:
                self.hit_tokens += min(before or 0, size)
            leading = leading and before is not None and before >= size
