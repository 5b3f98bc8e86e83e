"""Full blocks by what stands in them: a tree in which a block's parent is the block before it. A block is known by its parent and
its tokens, so two are equal exactly when all tokens from the first position on are equal; hashes only find candidates.

A block that no sequence reads is *cached*: its memory is free to take, and until somebody does it can be found again. Whoever holds
a block holds its parents too, so a cached block has only cached ones behind it, and taking leaves first can take them all.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import count

from cbbench.errors import CacheError


@dataclass(slots=True, eq=False)
class Node:
    block: int
    parent: Node | None
    content: Hashable
    depth: int  # blocks before it
    published: int = 0  # a stamp: when it became findable
    released: int = 0  # when its last reader left it
    uses: int = 1  # readers in all
    num_readers: int = 0
    hash: int = 0  # of its content and all before it; statistics only
    children: dict[Hashable, Node] = field(default_factory=dict)


ORDERS: dict[str, Callable[[Node], tuple[int, ...]]] = {  # eviction -> the block with the least of this goes first
    "lru": lambda node: (node.released,),
    "fifo": lambda node: (node.published,),
    "lfu": lambda node: (node.uses, node.released),
    "length-aware": lambda node: (-node.depth, node.released),
}


class PrefixTree:
    def __init__(self, eviction: str) -> None:
        self.order = ORDERS[eviction]
        self.root = Node(-1, None, None, -1)
        self.stamps = count(1)
        self.num_cached = 0  # blocks without a reader
        self.num_shared = 0  # blocks with two or more
        self.num_extra = 0  # readers beyond the first, over all blocks
        self._leaves: list[tuple[tuple[int, ...], int, int, Node]] = []  # a heap; entries of readers, parents and the gone are skipped

    def find(self, contents: Iterable[Hashable]) -> list[Node]:
        """The longest run of known blocks from the first position on."""
        found: list[Node] = []
        node = self.root
        for content in contents:
            if (following := node.children.get(content)) is None:
                break
            found.append(node := following)
        return found

    def publish(self, block: int, parent: Node | None, content: Hashable) -> Node:
        """Makes a full block findable; whoever filled it reads it."""
        parent = parent or self.root
        node = Node(block, parent, content, parent.depth + 1, published=next(self.stamps), num_readers=1)
        if parent.children.setdefault(content, node) is not node:
            raise CacheError(f"block {block}: another holds the same tokens")
        return node

    def acquire(self, node: Node) -> None:
        node.num_readers += 1
        node.uses += 1
        self.num_cached -= node.num_readers == 1
        self.num_shared += node.num_readers == 2
        self.num_extra += node.num_readers > 1

    def release(self, node: Node) -> None:
        """One reader less. A sequence releases its last block first."""
        if node.num_readers < 1:
            raise CacheError(f"block {node.block} has no reader: released twice?")
        self.num_extra -= node.num_readers > 1
        self.num_shared -= node.num_readers == 2
        node.num_readers -= 1
        if not node.num_readers:
            self.num_cached += 1
            node.released = next(self.stamps)
            self._offer(node)

    def evict(self) -> int:
        """Forgets the cached leaf that comes first in the order; returns its block."""
        while self._leaves:
            _, released, _, node = heapq.heappop(self._leaves)
            if node.num_readers or node.children or node.released != released or node.parent is None:
                continue
            parent, node.parent = node.parent, None
            del parent.children[node.content]
            self.num_cached -= 1
            if not parent.num_readers and parent is not self.root:
                self._offer(parent)
            return node.block
        raise CacheError(f"{self.num_cached} blocks are cached, and none can be taken")

    def nodes(self) -> Iterable[Node]:
        todo = [*self.root.children.values()]
        while todo:
            node = todo.pop()
            todo += node.children.values()
            yield node

    def _offer(self, node: Node) -> None:
        if not node.children:
            heapq.heappush(self._leaves, (self.order(node), node.released, node.block, node))
