"""Paged keys and values. See it: `cbbench run workloads/mixed.yaml --kv preallocated,paged`."""

from __future__ import annotations

from cbbench.errors import CacheError
from cbbench.kvcache._blocks import BlockCache, BlockOptions
from cbbench.request import Sequence


class Paged(BlockCache):
    """Memory is divided into blocks of `block_size` tokens; a block table per sequence lists the blocks that it has taken.

        pool     | A0 | B0 | A1 | .. | B1 | .. |     a block is taken when the sequence reaches it
        tables   A: 0 2    B: 1 4

    Source: Kwon et al., vLLM (SOSP 2023), section 4.

    Cost: the end of each sequence's last block is not used; attention must follow the block table or copy the keys together.
    Use when: many sequences of unknown length share limited memory.
    """

    Options = BlockOptions

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        held = self.num_held.get(sequence.index, 0)
        wanted = self.blocks_for(num_tokens)
        if wanted - held > len(self.free_blocks):
            return False
        if sequence.index not in self.tables:
            self.tables[sequence.index] = self.new_table(sequence)
            self.written[sequence.index] = 0
        for position in range(held, wanted):
            self.tables[sequence.index][position] = self.free_blocks.pop()
        self.num_held[sequence.index] = max(held, wanted)
        return True

    def release(self, sequence: Sequence) -> None:
        if sequence.index not in self.tables:
            raise CacheError(f"sequence {sequence.index} holds no blocks: freed twice?")
        table = self.tables.pop(sequence.index)
        self.free_blocks += table[: self.num_held.pop(sequence.index)][::-1].tolist()
        del self.written[sequence.index]

    def free_tokens(self) -> int:
        return len(self.free_blocks) * self.options.block_size

    def check(self) -> None:
        super().check()
        owned = [int(block) for index, table in self.tables.items() for block in table[: self.num_held[index]]]
        if sorted(owned + self.free_blocks) != list(range(self.num_blocks)):
            raise CacheError("a block has two owners, or none and is not free")
        for index, written in self.written.items():
            if self.blocks_for(written) > self.num_held[index]:
                raise CacheError(f"sequence {index}: {written} positions in {self.num_held[index]} blocks")
