"""From a profiler's trace to what each kernel could reach: read, recognise, shape, predict, rank."""

from pipewave.explain.compare import compare
from pipewave.explain.report import Entry, Report
from pipewave.explain.run import Workload, explain_trace

__all__ = ["Entry", "Report", "Workload", "compare", "explain_trace"]
