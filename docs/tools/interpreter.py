"""A Python prompt for programs: a JSON line {source, symbol} in, a JSON line {printed, failed} out."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from code import InteractiveInterpreter


class Prompt(InteractiveInterpreter):
    """An interpreter that remembers whether what it ran raised."""

    failed = False

    def showtraceback(self) -> None:
        """The last line of the traceback, as pages show it."""
        self.failed = True
        self.write("".join(traceback.format_exception_only(sys.exception())))

    def showsyntaxerror(self, filename: str | None = None, **kwargs: object) -> None:
        """As `showtraceback`."""
        self.showtraceback()


def main() -> None:
    """Answer until standard input ends."""
    prompt = Prompt({"__name__": "__main__"})
    for line in sys.stdin:
        asked, heard = json.loads(line), io.StringIO()
        prompt.failed = False
        with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
            prompt.runsource(asked["source"], symbol=asked["symbol"])
        print(json.dumps({"printed": heard.getvalue(), "failed": prompt.failed}), flush=True)


if __name__ == "__main__":
    main()
