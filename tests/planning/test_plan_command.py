"""The tables of `pipewave plan`."""

from typer.testing import CliRunner

from pipewave.cli import build


def test_tables_show_the_interval_of_tpot_beside_it() -> None:
    arguments = ["plan", "--model", "Llama-3.1-8B", "--gpus", "H100", "--isl", "128", "--osl", "16", "--tp", "1"]
    done = CliRunner().invoke(build(), arguments, env={"COLUMNS": "160"}, terminal_width=160)
    assert done.exit_code == 0, done.output
    heading = next(line for line in done.output.splitlines() if "TPOT ms" in line)
    assert heading.index("TPOT ms") < heading.index("TPOT 90 %") < heading.index("tok/s/GPU")
    first = done.output.splitlines()[done.output.splitlines().index(heading) + 2].split()
    tpot, low, dash, high = first[first.index("–") - 2 : first.index("–") + 2]
    assert dash == "–"
    assert float(low) < float(tpot) < float(high)
