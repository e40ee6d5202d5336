"""The tables of `pipewave plan`."""

from pipewave.cli import build
from tests.command_line import CliRunner


def test_tables_show_the_interval_of_tpot_beside_it() -> None:
    arguments = ["plan", "--model", "Llama-3.1-8B", "--gpus", "H100", "--isl", "128", "--osl", "16", "--tp", "1"]
    done = CliRunner().invoke(build(), arguments, env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    heading = next(line for line in done.output.splitlines() if "TPOT ms" in line)
    assert heading.index("TPOT ms") < heading.index("TPOT 90 %") < heading.index("tokens/s/GPU")
    first = done.output.splitlines()[done.output.splitlines().index(heading) + 2].split()
    tpot, low, dash, high = first[first.index("–") - 2 : first.index("–") + 2]
    assert dash == "–"
    assert float(low) < float(tpot) < float(high)


def test_a_table_in_which_every_design_may_miss_the_limit_says_so() -> None:
    from pipewave.models import load
    from pipewave.planning import Question, Space, plan
    from pipewave.view import document, terminal

    space = Space(("H200",), tps=(1,), budgets=(2048,), batches=(16,))
    tpot = plan(load("Llama-3.1-8B"), Question(512, 64), space).to_dict()["winner"]["tpot_ms"]
    answer = plan(load("Llama-3.1-8B"), Question(512, 64, tpot_ms=tpot * 1.02), space).to_dict()
    assert {row["sure"] for row in answer["front"]} == {"perhaps"}
    assert "perhaps: the 90 % interval" in terminal.write(document(answer))
