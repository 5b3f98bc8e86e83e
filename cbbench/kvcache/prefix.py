"""Prefix sharing. See it: `cbbench run workloads/shared-prefix.yaml --kv paged,prefix`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Literal

from pydantic import Field

from cbbench.errors import CacheError
from cbbench.kvcache._blocks import BlockCache, BlockOptions
from cbbench.kvcache._prefix_tree import Node, PrefixTree
from cbbench.kvcache.base import KVSpec, Sharing
from cbbench.plan import Row
from cbbench.request import Sequence


class Prefix(BlockCache):
    """Paged memory in which a full block is found again by its tokens and all tokens before them: a prompt that begins like
    an earlier one, or like an earlier prompt and its output, starts behind what is known. At least its last token is computed.

        pool     | P0 | P1 | A2 | B2 |            both prompts begin with the same two blocks
        tables   A: 0 1 2    B: 0 1 3

    A block that no sequence reads stays findable until its memory is needed; `eviction` says which goes first. Two sequences that
    fill equal blocks side by side share one as soon as both are full.

    Source: Kwon et al., vLLM (SOSP 2023), section 4.4; Zheng et al., SGLang (NeurIPS 2024), section 3, the tree; Qin et al.,
    Mooncake (2024), section 5.1, length-aware eviction.

    Cost: each full block is looked up by its tokens; a partly filled block is never shared.
    Use when: prompts begin alike: system prompts, examples, conversations of several turns.
    """

    class Options(BlockOptions):
        eviction: Literal["lru", "fifo", "lfu", "length-aware"] = Field(
            "lru", description="what is forgotten first: not used for longest, oldest, used least, or farthest from the start"
        )

    options: Options

    def __init__(self, spec: KVSpec, budget_tokens: int, longest_tokens: int, options: Options) -> None:
        super().__init__(spec, budget_tokens, longest_tokens, options)
        self.tree = PrefixTree(options.eviction)
        self.chains: dict[int, list[Node]] = {}  # sequence index -> its findable blocks, from the first on
        self.is_unknown: set[int] = set()  # sequences with a block that nobody can look up
        self.ever: set[int] = set()  # what memory without end would still know: hashes of block and all before it
        self.num_evicted = 0

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        index, wanted = sequence.index, self.blocks_for(num_tokens)
        is_new = index not in self.tables
        known = self.tree.find(self._contents(sequence)) if is_new else []
        held = len(known) if is_new else self.num_held[index]
        available = len(self.free_blocks) + self.tree.num_cached - sum(not node.num_readers for node in known)
        if wanted - held > available:
            return False
        if is_new:
            self._begin(sequence, known)
        for position in range(held, wanted):
            self.tables[index][position] = self._take()
        self.num_held[index] = max(held, wanted)
        return True

    def _begin(self, sequence: Sequence, known: list[Node]) -> None:
        index = sequence.index
        for node in known:
            self.tree.acquire(node)
        self.tables[index] = self.new_table(sequence)
        self.tables[index][: len(known)] = [node.block for node in known]
        self.chains[index] = known
        self.written[index] = len(known) * self.options.block_size
        if index not in self.ideal_tokens:
            self.ideal_tokens[index] = self.options.block_size * self._ideal(sequence)

    def _take(self) -> int:
        if self.free_blocks:
            return self.free_blocks.pop()
        self.num_evicted += 1
        return self.tree.evict()

    def _contents(self, sequence: Sequence) -> Iterator[Hashable]:
        """Of its known full blocks, without the one that holds the last known token: that must be computed."""
        size = self.options.block_size
        for start in range(0, (sequence.num_tokens - 1) // size * size, size):
            content = sequence.content(start, start + size)
            if content is None:
                return
            yield content

    def _ideal(self, sequence: Sequence) -> int:
        """Blocks at its start that some sequence has filled before it, whether they are still here or not."""
        number, before = 0, 0
        for content in self._contents(sequence):
            before = hash((before, content))
            if before not in self.ever:
                break
            number += 1
        return number

    def advance(self, row: Row) -> None:
        super().advance(row)
        self._publish(row.sequence, row.stop)

    def _publish(self, sequence: Sequence, num_written: int) -> None:
        """Full blocks become findable; one whose tokens are known already gives way to the known one."""
        index, size = sequence.index, self.options.block_size
        chain = self.chains[index]
        while len(chain) < num_written // size and index not in self.is_unknown:
            place = len(chain)
            content = sequence.content(place * size, (place + 1) * size)
            if content is None:
                self.is_unknown.add(index)
                return
            parent = chain[-1] if chain else self.tree.root
            block = int(self.tables[index][place])
            node = parent.children.get(content)
            if node is None:
                node = self.tree.publish(block, parent, content)
                node.hash = hash((parent.hash, content))
                self.ever.add(node.hash)
            else:
                self.tree.acquire(node)
                self.tables[index][place] = node.block
                self.free_blocks.append(block)
            chain.append(node)

    def release(self, sequence: Sequence) -> None:
        if sequence.index not in self.tables:
            raise CacheError(f"sequence {sequence.index} holds no blocks: freed twice?")
        chain = self.chains.pop(sequence.index)
        own = self.tables.pop(sequence.index)[len(chain) : self.num_held.pop(sequence.index)]
        self.free_blocks += own[::-1].tolist()
        for node in reversed(chain):
            self.tree.release(node)
        del self.written[sequence.index]
        self.is_unknown.discard(sequence.index)

    def free_tokens(self) -> int:
        return (len(self.free_blocks) + self.tree.num_cached) * self.options.block_size

    def sharing(self) -> Sharing:
        size = self.options.block_size
        return Sharing(self.tree.num_extra * size, self.tree.num_shared * size, self.tree.num_cached * size, self.num_evicted * size)

    def check(self) -> None:
        super().check()
        readers: dict[int, int] = {}
        own: list[int] = []
        for index, table in self.tables.items():
            chain = self.chains[index]
            if [node.block for node in chain] != table[: len(chain)].tolist():
                raise CacheError(f"sequence {index}: its table and its findable blocks differ")
            for node in chain:
                readers[node.block] = readers.get(node.block, 0) + 1
            own += table[len(chain) : self.num_held[index]].tolist()
        known = {node.block: node.num_readers for node in self.tree.nodes()}
        if {block: number for block, number in known.items() if number} != readers:
            raise CacheError(f"blocks are read {readers}, counted {known}")
        if sum(not number for number in known.values()) != self.tree.num_cached:
            raise CacheError(f"{self.tree.num_cached} blocks are counted as cached")
        if sorted([*own, *known, *self.free_blocks]) != list(range(self.num_blocks)):
            raise CacheError("a block is in two places, or in none")
