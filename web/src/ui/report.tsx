/** The answer as one self-contained file, fit to send to a colleague: what `pipewave report` writes. */

import { useState } from "preact/hooks";

import { type Body, ApiError, send } from "../core/api";
import { save } from "../core/save";
import { announce } from "./copy";

export interface Question {
  path: string;
  body: Body;
}

export function ReportButton({ question }: { question: Question }) {
  const [busy, setBusy] = useState(false);
  const write = async (): Promise<void> => {
    setBusy(true);
    try {
      const answer = await send(`${question.path}${question.path.includes("?") ? "&" : "?"}report=html`, question.body);
      save(await answer.blob(), "pipewave-report.html");
      announce("Saved: pipewave-report.html");
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      announce(problem.message);
    } finally {
      setBusy(false);
    }
  };
  return (
    <button type="button" class="copy" disabled={busy} onClick={() => void write()}>
      {busy ? "Writing…" : "Save as a report"}
    </button>
  );
}
