"""A `triton.jit` kernel whose configuration is chosen by what was measured of it: at first use, or in a table.

The first launches are measured within a budget; later ones are chosen for by the laws. Nothing is measured while a CUDA
graph is captured. Where there is no GPU, or the source cannot be read, `triton.autotune` or the first configuration
takes over: a missing table never stops a launch.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipewave.errors import BadInput
from pipewave.tune import store as store
from pipewave.tune.choose.chooser import Chooser, FixedChoice
from pipewave.tune.law.anchors import Floats
from pipewave.tune.law.model import moved
from pipewave.tune.law.peaks import Peaks
from pipewave.tune.source.formula import inputs_of
from pipewave.tune.user_kernels import launch_log as log
from pipewave.tune.user_kernels import measuring
from pipewave.tune.user_kernels.call_sites import Place, kind_picker, named, site_of, size_picker
from pipewave.tune.user_kernels.device import Device, Launch
from pipewave.tune.user_kernels.kernel import KernelDescription, Kind, described
from pipewave.tune.user_kernels.kind_state import KindState
from pipewave.tune.user_kernels.launch_formulas import LaunchFormulas

BUDGET_S = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """`budget_s`: seconds of timing at first use, in all; `trips`: loop trips where the source does not tell them;
    `table`: a table to choose by, which is never written (another GPU's is a start, and launches are measured);
    `cache`: a folder instead of the user's, False for none; `device`: what measures, default: the GPU in use.
    """

    budget_s: float = BUDGET_S
    trips: Any = None
    table: str | Path | None = None
    cache: str | Path | bool = True
    device: Device | None = None


class TunedKernel:
    """Stands where `triton.autotune` stood. `provenance` counts where choices came from; `reason` says why not ours."""

    def __init__(self, fn: Any, upstream: Any, configs: Sequence[Any], key: Sequence[str], options: Options) -> None:
        self.fn, self.upstream, self.options = fn, upstream, options
        self.configs = list(configs)
        self.of: KernelDescription = described(fn, [_keywords(config) for config in configs], key, options.trips)
        self.arg_names = list(self.of.arg_names)
        self.provenance: Counter[str] = Counter()
        self.reason, self.spent_s, self.best_config = "", 0.0, self.configs[0]
        self.kinds: dict[Kind, KindState] = {}
        self._pickers: dict[Any, Any] = {}
        self._entries: dict[Any, tuple[Chooser | FixedChoice, Any]] = {}
        self._places: dict[Any, Place | None] = {}  # None: launches of several sets of inputs come by
        self._place: Place | None = None  # of the last launch: most programs launch a kernel from one
        self._choosers: dict[tuple[Place, tuple[Any, ...]], Chooser | FixedChoice] = {}
        self._prunes = bool(getattr(upstream, "early_config_prune", None) or getattr(upstream, "perf_model", None))
        self._lock = threading.RLock()
        self._device: Device | None = options.device
        self._looked = options.device is not None
        self._table: Mapping[Kind, Any] = {}
        self._carried_to: Peaks | None = None  # this GPU's, where the table is another one's
        self._hooks = [config.pre_hook for config in self.configs]
        self._log = log.path()

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """Return the launcher of a grid, as a Triton kernel does."""
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch, or compile where `warmup`, with the configuration chosen for these arguments."""
        index = self.choose(args, kwargs, grid)
        if index is None:
            return self.upstream.run(*args, grid=grid, warmup=warmup, **kwargs)
        config, hook = self.of.configs[index], self._hooks[index]
        self.best_config = self.configs[index]
        if hook is not None:
            hook({**named(self.of, args, kwargs), **config})
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs, **config)

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Compile what a launch would run."""
        return self.run(*args, grid=grid, warmup=True, **kwargs)

    def choose(self, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any) -> int | None:
        """Number of the configuration for a launch; None where upstream must decide."""
        if self.reason:
            self.provenance["upstream"] += 1
            return None
        place = self._place
        try:
            launch: Any = None if place is None else place.pick(args, kwargs, grid)
            if launch is None:
                place = self._places.get(site_of(args, kwargs, grid))
                launch = None if place is None else place.pick(args, kwargs, grid)
                self._place = place
            found = None if place is None else place.known.get(launch)
            if found is None and self._by_model_alone():
                found = self._unseen(place, launch) if place is not None else self._anywhere(args, kwargs, grid)
        except (KeyError, AttributeError, TypeError):
            found = None
        return self._slow(args, kwargs, grid) if found is None else found

    def _by_model_alone(self) -> bool:
        """Whether nothing but the model decides: no log, no measuring, no pruning by the user."""
        return self._log is None and not self._prunes and not self._measures()

    def _unseen(self, place: Place, launch: tuple[Any, ...]) -> int:
        """The choice for a launch of a known kind at a known place. KeyError for another kind."""
        chooser = self._choosers[place, launch[: place.kinds]]
        return place.remember(launch, self._counted(chooser, launch[place.kinds :]))

    def _anywhere(self, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any) -> int:
        """The choice at a place that launches of several sets of inputs come by. KeyError where it is new."""
        site = site_of(args, kwargs, grid)
        chooser, pick = self._entries[site, self._pickers[site](args, kwargs, grid)]
        return self._counted(chooser, pick(args, kwargs, grid))

    def _counted(self, chooser: Chooser | FixedChoice, key: tuple[Any, ...]) -> int:
        """A choice by sizes, counted where it is new."""
        found = chooser.memo.get(key)
        if found is None:
            self.provenance["model"] += 1
            found = chooser.remember(key, chooser.decide(key))
        return found

    def _may_measure(self) -> bool:
        """Whether there is budget left to measure with, now or when no graph is captured any more."""
        is_open = self.options.table is None or self._carried_to is not None
        return is_open and self.spent_s < self.options.budget_s and self.device() is not None

    def _measures(self) -> bool:
        """Whether a launch not seen before is to be measured."""
        device = self.device() if self._may_measure() else None
        return device is not None and device.idle()

    def device(self) -> Device | None:
        """What measures; looked for once."""
        if not self._looked:
            from pipewave.tune.user_kernels import gpu

            self._device, self._looked = gpu.current(), True
        return self._device

    def _slow(self, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any) -> int | None:
        """Read the launch, then measure it or choose for it. What cannot be read goes to upstream, with the reason."""
        with self._lock:
            try:
                return self._chosen(args, kwargs, grid)
            except Exception as problem:  # noqa: BLE001  whatever goes wrong here must not stop the user's launch
                self.reason = f"{type(problem).__name__}: {problem}"
                warnings.warn(f"{self.of.name}: falling back to triton.autotune: {self.reason}", stacklevel=5)
                return None

    def _chosen(self, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any) -> int:
        by_name = named(self.of, args, kwargs)
        numbers = inputs_of(grid, by_name, self.of.constants)
        state = self.state(self.of.kind(by_name), grid, by_name, numbers)
        counts = state.formulas.counts(numbers)
        if self._log is not None:
            log.write(self._log, self.of, by_name, grid, numbers, counts)
        allowed = self._allowed(args, kwargs)
        index = self._pick(state, args, kwargs, grid, numbers, counts, allowed)
        if state.chooser is not None and state.formulas.is_followed:
            self._enter(state.chooser, args, kwargs, grid, index)
        elif state.chooser is None and self._log is None and not (self._may_measure() or self._prunes):
            self._enter(FixedChoice(), args, kwargs, grid, index)
        return index

    def state(self, kind: Kind, grid: Any, by_name: Mapping[str, Any], numbers: Mapping[str, Any]) -> KindState:
        """A kind of launch, read and with what the cache or the table has of it."""
        new = kind not in self.kinds
        state = self.kinds.setdefault(kind, KindState(LaunchFormulas(self.of)))
        state.formulas.read(grid, by_name, numbers)
        if new:
            self._recall(kind, state)
        return state

    def _recall(self, kind: Kind, state: KindState) -> None:
        if self.options.table is not None:
            self._read_table(self.options.table)
            if kind in self._table:
                found = self._table[kind]
                if self._carried_to is None:
                    state.adopt(found.model, found.launches, found.sizes)
                else:
                    state.carry(moved(found.model, self._carried_to), found.launches, found.sizes)
            if self._carried_to is None:
                return
        device, path = self.device(), self.path()
        if device is None or path is None:
            return
        for record in store.launches(path, self.of, device.env):
            record_kind, numbers, counts, us = store.numbers_of(record)
            if record_kind == kind:
                state.add(numbers, counts, us, store.built_of(record))
                self.spent_s += float(record["seconds"])
        if state.us:
            state.fit(device.peaks)

    def _read_table(self, path: str | Path) -> None:
        """Read the table, once; one of another GPU is a start for this one, and launches are measured too."""
        if not self._table:
            meta, self._table = store.read_table(Path(path), self.of)
            device, made_on = self.device(), meta["env"].get("gpu")
            if device is not None and made_on and made_on != device.env.get("gpu"):
                self._carried_to = device.peaks

    def path(self) -> Path | None:
        """Where what is measured is kept, without suffix."""
        device = self.device()
        if device is None or self.options.cache is False:
            return None
        base = None if self.options.cache is True else Path(self.options.cache)
        return store.stem(self.of, str(device.env.get("gpu", device.peaks.gpu)), base)

    def _allowed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int]:
        """Configurations that the user's own pruning leaves."""
        if not self._prunes:
            return list(range(len(self.configs)))
        self.upstream.nargs = dict(zip(self.arg_names, args, strict=False))
        left = self.upstream.prune_configs(dict(kwargs))
        return [i for i, config in enumerate(self.configs) if any(config is one or config == one for one in left)]

    def _pick(self, state: KindState, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any,
              numbers: Mapping[str, Any], counts: Floats, allowed: Sequence[int]) -> int:  # fmt: skip
        if state.chooser is not None:
            known = state.chooser.memo.get(tuple(numbers[name] for name in state.chooser.inputs))
            if known is not None and known in allowed:
                return known
        if len(allowed) > 1 and self._measures():
            device = self.device()
            assert device is not None
            launch = self.launch(args, kwargs, grid)
            us = self.measure(state, device, launch, numbers, counts, allowed)
            if us is not None:
                self.provenance["measured"] += 1
                return us
        if state.chooser is not None and state.model is not None:
            self.provenance["model"] += 1
            return self._by_model(state.chooser, numbers, allowed)
        self.provenance["default"] += 1
        return allowed[0]

    @staticmethod
    def _by_model(chooser: Chooser, numbers: Mapping[str, Any], allowed: Sequence[int]) -> int:
        key = tuple(numbers[name] for name in chooser.inputs)
        index = chooser.choose(key)
        if index in allowed:
            return index
        usable = [i for i in allowed if i in chooser.usable] or list(allowed)
        expected = chooser.expected_us(key)
        return chooser.remember(key, min(usable, key=lambda i: float(expected[i])))

    def launch(self, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any) -> Launch:
        """A launch to measure, with the hooks that upstream runs around each."""

        def full(index: int) -> dict[str, Any]:
            return {**named(self.of, args, kwargs), **self.of.configs[index]}

        def prepare(index: int) -> None:
            hook = self._hooks[index]
            if hook is not None:
                hook(full(index))

        def before(index: int) -> None:
            prepare(index)
            self.upstream.pre_hook(full(index))

        def after(index: int) -> None:
            self.upstream.post_hook(full(index), exception=None)

        return Launch(self.fn, grid, args, kwargs, self.of.configs, before, after, prepare)

    def measure(self, state: KindState, device: Device, launch: Launch, numbers: Mapping[str, Any], counts: Floats,
                allowed: Sequence[int]) -> int | None:  # fmt: skip
        """Time a launch under the configurations allowed, keep it, fit anew; the fastest, None where none ran."""
        narrow = any("8" in text for _, text in self.of.kind(named(self.of, launch.args, launch.kwargs)))
        timed = measuring.measure(device, launch, allowed, counts, state.expected_us(counts, device.peaks), narrow,
                                  getattr(device, "clock", time.monotonic))  # fmt: skip
        self.upstream.pre_hook({**named(self.of, launch.args, launch.kwargs), **self.of.configs[allowed[0]]},
                               reset_only=True)  # fmt: skip
        self.spent_s += timed.seconds
        if not (timed.us == timed.us).any():
            if any(each.us for each in self.kinds.values()):
                return None
            why = next((one.error for one in timed.built.values() if one.error), "nothing could be timed")
            raise BadInput(f"no configuration ran: {why}", field="configs")
        state.add(numbers, counts, timed.us, timed.built)
        self.keep(state, numbers, counts, timed, named(self.of, launch.args, launch.kwargs))
        self._refit(state, device)
        return int(min((i for i in allowed if timed.us[i] == timed.us[i]), key=lambda i: float(timed.us[i])))

    def _refit(self, state: KindState, device: Device) -> None:
        """Fit where it pays, and everything once the budget is spent: from then on the laws choose."""
        new = state.take(device.peaks)
        if self.spent_s >= self.options.budget_s:
            for each in self.kinds.values():
                if each.fitted_to < len(each.us):
                    each.fit(device.peaks)
            new = True
        if new:
            self._entries, self._places, self._choosers, self._place = {}, {}, {}, None  # choosers are new

    def keep(self, state: KindState, numbers: Mapping[str, Any], counts: Floats, timed: measuring.Timed,
              by_name: Mapping[str, Any]) -> None:  # fmt: skip
        """Append a measured launch to the store; a full disk costs the record, not the launch."""
        path, device = self.path(), self.device()
        if path is None or device is None:
            return
        built = [state.built.get(i) for i in range(len(self.configs))]
        rows = [
            [one.smem_bytes, one.registers, int(bool(one.error))] if one else [0, 0, store.NOT_BUILT] for one in built
        ]
        try:
            store.append(
                path, self.of, device.env, self.of.kind(by_name), numbers, counts, timed.us, rows, timed.seconds
            )
        except OSError as problem:
            warnings.warn(f"{self.of.name}: what was measured is not kept: {problem}", stacklevel=2)

    def _enter(
        self, chooser: Chooser | FixedChoice, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any, index: int
    ) -> None:
        """Remember the choice, and how to come to it fast from this place in the program."""
        site = site_of(args, kwargs, grid)
        if site not in self._pickers:
            self.of.held.append(getattr(grid, "__code__", None))  # its id names the place: it must live
            self._pickers[site] = kind_picker(self.of, args, kwargs)
        pick = size_picker(self.of, args, grid, chooser.inputs)
        chooser.remember(pick(args, kwargs, grid), index)
        self._entries[site, self._pickers[site](args, kwargs, grid)] = chooser, pick
        if site not in self._places:
            self._places[site] = Place(self.of, args, kwargs, grid, chooser.inputs)
        place = self._places[site]
        if place is not None and place.inputs != chooser.inputs:  # kinds of other arguments come by here
            place = self._places[site] = self._place = None
        if place is not None:
            launch = place.pick(args, kwargs, grid)
            self._choosers[place, launch[: place.kinds]] = chooser
            place.remember(launch, index)


def _keywords(config: Any) -> dict[str, Any]:
    """A `triton.Config` as the keyword arguments that it launches with."""
    return dict(config.all_kwargs())
