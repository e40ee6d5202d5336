"""From a profiler's trace to what each kernel could reach: read, recognise, shape, predict, rank."""

from pipewave.traces.compare import compare
from pipewave.traces.entry import Entry
from pipewave.traces.explain import Workload, explain_trace
from pipewave.traces.report import Report

__all__ = ["Entry", "Report", "Workload", "compare", "explain_trace"]
