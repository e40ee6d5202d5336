/** The answer as one self-contained file, fit to send to a colleague: what `pipewave report` writes. */

import { useState } from "preact/hooks";

import { type Body, ApiError, send } from "../core/api";
import { announce } from "./copy";

export interface Question {
  path: string;
  body: Body;
}

export function ReportButton({ question }: { question: Question }) {
  const [busy, setBusy] = useState(false);
  const save = async (): Promise<void> => {
    setBusy(true);
    try {
      const answer = await send(`${question.path}${question.path.includes("?") ? "&" : "?"}report=html`, question.body);
      download(await answer.blob(), "pipewave-report.html");
      announce("Saved: pipewave-report.html");
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      announce(problem.message);
    } finally {
      setBusy(false);
    }
  };
  return (
    <button type="button" class="copy" disabled={busy} onClick={() => void save()}>
      {busy ? "Writing…" : "Save as a report"}
    </button>
  );
}

function download(file: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
