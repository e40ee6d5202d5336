"""A `triton.jit` kernel whose configuration is chosen by what was measured of it: at first use, or in a table.

The first launches are measured within a budget; later ones are chosen for by the laws. Nothing is measured while a CUDA
graph is captured. Where there is no GPU, or the source cannot be read, `triton.autotune` or the first configuration
takes over: a missing table never stops a launch.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipewave.errors import BadInput
from pipewave.tune import store
from pipewave.tune.chooser import Chooser, Memo
from pipewave.tune.law.anchors import Floats, Peaks
from pipewave.tune.law.margin import one_for_all
from pipewave.tune.law.model import JUDGED
from pipewave.tune.source.formula import GRID, inputs_of
from pipewave.tune.store import Measured
from pipewave.tune.user_kernels import hooks, measuring
from pipewave.tune.user_kernels.aside import ASIDE
from pipewave.tune.user_kernels.call_sites import CallSites, named
from pipewave.tune.user_kernels.device import Device, Launch, Options
from pipewave.tune.user_kernels.kernel import KernelDescription, Kind, described
from pipewave.tune.user_kernels.kind_state import KindState
from pipewave.tune.user_kernels.launch_formulas import LaunchFormulas

if TYPE_CHECKING:
    Autotuner = Any
    CompileTimeAssertionFailure = OutOfResources = PTXASError = RuntimeError
else:
    try:
        from triton.compiler.errors import CompileTimeAssertionFailure
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.errors import OutOfResources, PTXASError
    except ImportError:  # reading what was measured elsewhere needs no Triton
        Autotuner = object
        CompileTimeAssertionFailure = OutOfResources = PTXASError = RuntimeError

_LIVE: weakref.WeakSet[TunedKernel] = weakref.WeakSet()


def _unlock() -> None:
    for kernel in _LIVE:
        kernel._lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock)  # nobody holds a lock there that a thread of the parent held


class TunedKernel(Autotuner):  # type: ignore[misc]
    """Stands where `triton.autotune` stood, and is an `Autotuner` to whoever looks: `upstream` is the one that Triton
    made, and all of its attributes are here too. `provenance` counts where choices came from; `reason` says why the
    laws do not choose; `gains`: at each measured launch, how many times the fastest the first configuration takes.
    """

    def __init__(self, upstream: Any, options: Options) -> None:
        self.__dict__.update(upstream.__dict__)
        self.upstream, self.options = upstream, options
        self.launch_upstream: Callable[..., Any] | None = None  # where `upstream.run` would come back here
        upstream.pipewave_tuned = None  # `patch` leaves it alone
        configs = [dict(config.all_kwargs()) for config in self.configs]
        self.of: KernelDescription = described(self.fn, configs, upstream.keys, options.trips)
        self.arg_names = list(self.of.arg_names)
        self.provenance: Counter[str] = Counter()
        self.reason, self.spent_s, self.best_config = "", 0.0, self.configs[0]
        self.gains: list[float] = []
        self.kinds: dict[Kind, KindState] = {}
        self._handed_over = False  # everything goes to upstream, for the reason
        self._sites = CallSites(self.of)
        self._unfollowed: Memo[int] = Memo()  # choices for launches whose grids are not followed
        self._prunes = bool(getattr(upstream, "early_config_prune", None) or getattr(upstream, "perf_model", None))
        self._lock = threading.RLock()
        self._table: Mapping[Kind, Any] = {}
        self._carried_to: Peaks | None = None  # this GPU's, where the table is another one's
        self._hooks = [config.pre_hook for config in self.configs]
        self._log = Path(os.environ[hooks.VARIABLE]) if os.environ.get(hooks.VARIABLE) else None
        _LIVE.add(self)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """Return the launcher of a grid, as a Triton kernel does."""
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch, or compile where `warmup`, with the configuration chosen for these arguments."""
        index = self.choose(args, kwargs, grid)
        if index is None:
            return self._by_upstream(*args, grid=grid, warmup=warmup, **kwargs)
        config, hook = self.of.configs[index], self._hooks[index]
        self.best_config = self.upstream.best_config = self.configs[index]  # under `patch` users look at upstream
        if hook is not None:
            hook({**named(self.of, args, kwargs), **config})
        try:
            return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs, **config)
        except (OutOfResources, CompileTimeAssertionFailure, PTXASError) as problem:  # before anything was launched
            self.reason = f"{type(problem).__name__} at a launch that was not measured: {problem}"
            self.provenance["upstream"] += 1
            return self._by_upstream(*args, grid=grid, warmup=warmup, **kwargs)

    def _by_upstream(self, *args: Any, **kwargs: Any) -> Any:
        return (self.launch_upstream or self.upstream.run)(*args, **kwargs)

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Compile what a launch would run."""
        return self.run(*args, grid=grid, warmup=True, **kwargs)

    def choose(self, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any) -> int | None:
        """Number of the configuration for a launch; None where upstream must decide."""
        if self._handed_over:
            self.provenance["upstream"] += 1
            return None
        place, launch = self._sites.at(args, kwargs, grid)
        if place is not None:
            found = place.known.get(launch)
            # Nothing but the model decides where nothing is logged, measured or pruned by the user.
            if found is None and self._log is None and not self._prunes and not self._measures():
                chooser = place.choosers[launch[: place.kinds]]
                if chooser is not None:
                    found = self._counted(chooser, launch[place.kinds :])
                    if chooser.is_ready:
                        place.known.keep(launch, found)
            if found is not None:
                return found
        with self._lock:
            try:
                return self._chosen(args, kwargs, grid)
            except Exception as problem:  # noqa: BLE001  whatever goes wrong here must not stop the user's launch
                self.reason, self._handed_over = f"{type(problem).__name__}: {problem}", True
                warnings.warn(f"{self.of.name}: falling back to triton.autotune: {self.reason}", stacklevel=4)
                return None

    def settle(self) -> None:
        """Fit to everything measured, and wait until all that later launches are chosen by is worked out."""
        with self._lock:
            self._fit_all()
        ASIDE.settle()

    def _fit_all(self) -> None:
        device = self.tuned_on
        for state in self.kinds.values():
            if device is not None and state.fitted_to < len(state.measured):
                state.fit(device.peaks)
                self._sites.forget()
            if state.chooser is not None:
                state.chooser.begin()

    def _counted(self, chooser: Chooser, key: tuple[Any, ...]) -> int:
        """A choice by sizes, counted where it is new; not kept while lists are worked out, but into a CUDA graph."""
        found = chooser.memo.get(key)
        if found is None:
            self.provenance["model"] += 1
            if chooser.is_ready or self._captures():
                found = chooser.remember(key, chooser.decide(key))
            else:
                found = chooser.meanwhile(key)
        return found

    def _captures(self) -> bool:
        """Whether a CUDA graph is captured, which keeps what is chosen now."""
        return (device := self.tuned_on) is not None and not device.idle()

    def _may_measure(self) -> bool:
        """Whether there is budget left to measure with, now or when no graph is captured any more."""
        is_open = self.options.table is None or self._carried_to is not None
        return is_open and self.spent_s < self.options.budget_s and self.tuned_on is not None

    def _measures(self) -> bool:
        """Whether a launch not seen before is to be measured."""
        return self._may_measure() and not self._captures()

    @cached_property
    def tuned_on(self) -> Device | None:
        """What measures; looked for once."""
        from pipewave.tune.user_kernels import gpu

        found, theirs = self.options.device or gpu.current(), hooks.user_benchmark(self.upstream)
        return hooks.Benched(found, theirs) if found is not None and theirs is not None else found

    def _chosen(self, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any) -> int:
        """Read a launch, then measure it or choose for it."""
        by_name = named(self.of, args, kwargs)
        numbers = inputs_of(grid, by_name, self.of.flags)
        kind = self.of.kind(by_name)
        known = self._unfollowed.get((kind, *numbers.items())) if self._unfollowed else None
        if known is not None:
            return known
        state = self.state(kind, grid, by_name, numbers)
        counts = state.formulas.counts(numbers)
        if self._log is not None:
            hooks.noted(self._log, self.of, by_name, grid, numbers, counts)
        allowed = self._allowed(args, kwargs)
        wanted = state.wants(numbers)
        index = self._pick(state, args, kwargs, grid, numbers, counts, allowed)
        if wanted and self._may_measure():
            return index
        if state.chooser is not None and state.formulas.is_followed:
            self._sites.enter(state.chooser, args, kwargs, grid, index)
        elif self._log is None and not (self._may_measure() or self._prunes):
            if state.chooser is None:
                self._sites.enter(None, args, kwargs, grid, index)
            elif state.chooser.is_ready:
                self._unfollowed.keep((kind, *numbers.items()), index)
        return index

    def state(self, kind: Kind, grid: Any, by_name: Mapping[str, Any], numbers: Mapping[str, Any]) -> KindState:
        """A kind of launch, read and with what the cache or the table has of it."""
        known = self.kinds.get(kind)
        if known is not None and not known.formulas.covers(numbers):  # launched with another grid function
            enclosed = " ".join(name for name in numbers if name.startswith(GRID))
            kind = (*kind, ("grid", enclosed))
        new = kind not in self.kinds
        state = self.kinds.setdefault(kind, KindState(LaunchFormulas(self.of, self._hooks), kind))
        state.formulas.read(grid, by_name, numbers)
        if new:
            self._recall(kind, state)
        return state

    def _recall(self, kind: Kind, state: KindState) -> None:
        device = self.tuned_on
        if self.options.table is not None:
            if not self._table:
                meta, self._table = store.read_table(Path(self.options.table), self.of)
                made_on = meta["env"].get("gpu")
                if device is not None and made_on and made_on != device.env.get("gpu"):  # a start for this GPU
                    self._carried_to = device.peaks
            if kind in self._table:
                state.adopt(self._table[kind], self._carried_to)
            if self._carried_to is None:
                return
        path = self.path()
        if device is None or path is None:
            return
        for one in store.launches(path, self.of, device.env):
            if one.kind == kind and state.formulas.covers(one.numbers):
                state.measured.append(one)
                self.spent_s += one.timed.seconds
        if state.measured:
            state.fit(device.peaks)

    def path(self) -> Path | None:
        """Where what is measured is kept, without suffix."""
        device = self.tuned_on
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
        measures = len(allowed) > 1 and self._measures() and not state.refused
        chooser = state.chooser
        key = () if chooser is None else tuple(numbers[name] for name in chooser.inputs)
        if chooser is not None and not (measures and state.wants(numbers)):
            known = chooser.memo.get(key)
            if known is not None and known in allowed:
                return known
        if measures and (not state.is_hidden or state.wants(numbers)):
            device = self.tuned_on
            assert device is not None
            launch = hooks.launch_of(self, args, kwargs, grid)
            found = self.measure(state, device, launch, numbers, counts, allowed)
            if found is not None:
                self.provenance["measured"] += 1
                return found
        if chooser is not None:
            index = self._counted(chooser, key)
            if index in allowed:
                return index
            usable = [i for i in allowed if i in chooser.usable] or allowed
            return chooser.remember(key, chooser.best_of(key, np.array(usable)))
        self.provenance["default"] += 1
        if not self.reason and self.tuned_on is None:
            self.reason = "no GPU to measure on: the first configuration runs"
        others = [] if state.refused else [one for each in self.kinds.values() for one in each.measured]
        runs = [one.timed.us[allowed] for one in others if np.isfinite(one.timed.us[allowed]).any()]
        return allowed[one_for_all(np.array(runs))] if len(runs) >= JUDGED else allowed[0]

    def timed(self, state: KindState, device: Device, launch: Launch, numbers: Mapping[str, Any], counts: Floats,
              allowed: Sequence[int]) -> measuring.Timed:  # fmt: skip
        """Time a launch under the configurations allowed, and keep it if any ran."""
        narrow = any("8" in text for _, text in self.of.kind(named(self.of, launch.args, launch.kwargs)))
        whole = not self.options.budget_s or isinstance(device, hooks.Benched)  # ahead, or by the user's slow benchmark
        timed = measuring.measure(device, launch, allowed, counts, state.expected_us(counts, device.peaks), narrow,
                                  followed=not state.formulas.unknown,
                                  most_s=np.inf if whole else measuring.SHARE * self.options.budget_s)  # fmt: skip
        self.spent_s += timed.seconds
        if (timed.us == timed.us).any():
            state.measured.append(Measured(state.kind, numbers, counts, timed))
            hooks.kept(self, state.measured[-1])
        return timed

    def measure(self, state: KindState, device: Device, launch: Launch, numbers: Mapping[str, Any], counts: Floats,
                allowed: Sequence[int]) -> int | None:  # fmt: skip
        """As `timed`, then fit anew; the fastest, None where none ran. BadInput where none ever did."""
        timed = self.timed(state, device, launch, numbers, counts, allowed)
        by_name = named(self.of, launch.args, launch.kwargs)
        hooks.failures_told(self.upstream, launch, timed)
        self.upstream.pre_hook({**by_name, **self.of.configs[allowed[0]]}, reset_only=True)
        if not (timed.us == timed.us).any():
            why = next((one.error for one in timed.built.values() if one.error), "nothing could be timed")
            if not any(each.measured for each in self.kinds.values()):
                raise BadInput(f"no configuration ran: {why}", field="configs")
            state.refused = self.reason = f"no configuration ran at one kind of launches: {why}"
            return None
        if state.take(device.peaks):
            self._sites.forget()
        if self.spent_s >= self.options.budget_s:  # from now on the laws choose
            self._fit_all()
        best = int(min((i for i in allowed if timed.us[i] == timed.us[i]), key=lambda i: float(timed.us[i])))
        if timed.us[allowed[0]] == timed.us[allowed[0]]:
            self.gains.append(float(timed.us[allowed[0]] / timed.us[best]))
        hooks.announced(self, by_name, timed, best)
        return best
