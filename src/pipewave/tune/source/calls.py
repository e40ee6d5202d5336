"""Calls of the Triton language while a block is read: program ids, tiles, products, loads and stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipewave.tune.source import language
from pipewave.tune.source.values import Address, Block, Tile, Unknown, combined, shape_of


class LanguageCalls:
    """One method a function that counts something or whose extent is not that of its operands."""

    block: Block

    def _language(self, name: str, given: list[Any], named: dict[str, Any], line: int) -> Any:
        """A function of the language."""
        handler = getattr(self, f"_call_{name}", None)
        if handler is not None:
            return handler(given, named)
        first = given[0] if given else Unknown(name)
        if name in language.NUMBERS and not (name in language.REDUCTIONS and isinstance(first, Tile)):
            return language.number(name, [*given, *named.values()])
        if name in language.REDUCTIONS:
            return language.reduced(first, named.get("axis", given[1] if len(given) > 1 else None))
        if name in language.SAME or name in language.CARRIED:
            return first
        if any(isinstance(value, Tile | Address) for value in given):
            return combined(*given)
        return Unknown(f"the function {name} (line {line})")

    def _call_program_id(self, given: list[Any], named: dict[str, Any]) -> Any:
        axis = int(named.get("axis", given[-1] if given else 0))
        return self.block.ids[axis] if axis < len(self.block.ids) else 0

    def _call_num_programs(self, given: list[Any], named: dict[str, Any]) -> Any:
        axis = int(named.get("axis", given[-1] if given else 0))
        return self.block.grid[axis] if axis < len(self.block.grid) else 1

    def _call_constexpr(self, given: list[Any], _: dict[str, Any]) -> Any:
        return given[0]

    def _call_arange(self, given: list[Any], _: dict[str, Any]) -> Any:
        return language.arange(*given[-2:])

    def _call_zeros(self, given: list[Any], named: dict[str, Any]) -> Any:
        return language.full(named.get("shape", given[0] if given else None))

    _call_full = _call_zeros

    def _call_zeros_like(self, given: list[Any], _: dict[str, Any]) -> Any:
        return combined(given[0])

    def _call_where(self, given: list[Any], _: dict[str, Any]) -> Any:
        return language.where(*given[-3:])

    def _call_dot(self, given: list[Any], named: dict[str, Any]) -> Any:
        a, b = (named.get(name, given[i] if len(given) > i else None) for i, name in enumerate(("input", "other")))
        product, flops = language.dot(a, b)
        self.block.counts.flops += self.block.weight * flops
        return product

    def _call_dot_scaled(self, given: list[Any], _: dict[str, Any]) -> Any:
        return self._call_dot([given[0], given[3]], {}) if len(given) > 3 else Unknown("operands of a dot")

    def _call_trans(self, given: list[Any], _: dict[str, Any]) -> Any:
        rest = given[1:]
        return language.transposed(given[0], rest[0] if len(rest) == 1 else rest or None)

    _call_permute = _call_trans

    def _call_expand_dims(self, given: list[Any], named: dict[str, Any]) -> Any:
        return language.expanded(given[0], int(named.get("axis", given[-1])))

    def _call_reshape(self, given: list[Any], _: dict[str, Any]) -> Any:
        shape = given[1] if len(given) == 2 else tuple(given[1:])
        return language.reshaped(given[0], shape)

    _call_view = _call_broadcast_to = _call_reshape

    def _call_make_block_ptr(self, given: list[Any], named: dict[str, Any]) -> Any:
        return language.block(named.get("base", given[0] if given else None), named.get("block_shape", _at(given, 4)))

    def _call_make_tensor_descriptor(self, given: list[Any], named: dict[str, Any]) -> Any:
        return language.block(named.get("base", given[0] if given else None), named.get("block_shape", _at(given, 3)))

    def _call_advance(self, given: list[Any], _: dict[str, Any]) -> Any:
        return given[0]

    def _call_load(self, given: list[Any], _: dict[str, Any]) -> Any:
        address = given[0] if given else None
        if not isinstance(address, Address):
            self.block.tell("an address that is not followed", 0)
            return Unknown("a value loaded from an unknown address")
        self.block.moved(self.block.counts.read, address)
        return Tile(address.shape) if address.shape else Unknown(f"a value loaded from {address.base}")

    def _call_store(self, given: list[Any], _: dict[str, Any]) -> Any:
        if given and isinstance(given[0], Address):
            address = given[0]
            value = shape_of(given[-1]) if len(given) > 1 else None
            wide = address if address.shape or not value else Address(address.base, value)
            self.block.moved(self.block.counts.written, wide)

    def _call_atomic_add(self, given: list[Any], named: dict[str, Any]) -> Any:
        self._call_store(given[:2], named)
        return self._call_load(given[:1], named)


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if len(values) > index else None
