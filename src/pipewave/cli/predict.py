"""`pipewave predict`: kernels on GPUs, one for people or a file of cases for programs."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Annotated

from pipewave.cli.bars import bar
from pipewave.cli.command import Command, Group, Option, first_line
from pipewave.cli.streams import answer_cases
from pipewave.errors import BadInput, UnknownKernel, meant_or_known
from pipewave.version import VERSION


class Families(Group):
    """One command a family, built when one is asked for or listed: help of the whole command stays quick."""

    def lines(self) -> dict[str, str]:
        """Names of the families, and what each computes."""
        from pipewave.kernels import families, family_of

        return {name: first_line(family_of(name).call.__doc__ or "") for name in families()}

    def command(self, name: str) -> Command:
        """The command of a family. Raises UnknownKernel, with the nearest one that there is."""
        from pipewave.kernels import families, revision

        if name not in families():
            raise UnknownKernel(f"unknown kernel {name!r}:{meant_or_known(name, families())}", field="kernel")
        return _built(name, revision())


@lru_cache(maxsize=32)
def _built(family: str, _registry: int) -> Command:
    from pipewave.cli.families import command

    return command(family)


def predict_cases(
    cases: Annotated[str | None, Option(help="JSON-lines file of cases; - is standard input.")] = None,
    gpu: Annotated[str | None, Option(help="GPU of the cases that name none.")] = None,
    out: Annotated[str, Option(help="Where answers go; - is standard output.")] = "-",
    resume: Annotated[bool, Option("--resume", help="Go on where an interrupted run stopped.")] = False,
) -> int:
    """Latency of a kernel (`predict gemm M N K --gpu H200`) or of a file (`predict --cases F --out G`)."""
    if cases is None:
        raise BadInput("name a kernel (pipewave predict gemm ...) or give --cases FILE", field="cases")
    from pipewave.gpus import find
    from pipewave.prediction.jsonl import answer_stream

    where = find(gpu) if gpu else None
    with bar("cases") as tell:
        work = partial(answer_stream, gpu=where, progress=tell)
        return answer_cases(cases, out, work, resume=resume, asked=["predict", VERSION, gpu or ""])


GROUP = Families("Latency of a kernel, or of every case in a file.", {}, predict_cases)
