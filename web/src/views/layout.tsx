/** Inputs on the left, results on the right; stale results stay, dimmed, until the new ones are there. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

import type { Latest } from "../core/latest";
import { type Question, ReportButton } from "../ui/report";

interface SplitProps {
  inputs: ComponentChildren;
  state: Pick<Latest<unknown>, "answer" | "error" | "busy">;
  waiting: string;
  /** What gave these results, for the report; null where nothing has been asked. */
  question: Question | null;
  children: ComponentChildren;
}

export function Split({ inputs, state, waiting, question, children }: SplitProps) {
  const stale = state.error !== null;
  const asked = JSON.stringify(question?.body ?? null);
  return (
    <div class="split">
      <aside class="panel">{inputs}</aside>
      <div id="results" class={`results${stale ? " stale" : ""}`} tabIndex={-1} aria-busy={state.busy}>
        {stale && state.answer !== null && <p class="stale-note">These numbers are of the last inputs that worked.</p>}
        {question && state.answer !== null && !stale && (
          <div class="toolbar">
            <ReportButton question={question} />
          </div>
        )}
        {state.busy && question && state.answer !== null && <Seconds key={asked} says="Working on what was changed" />}
        {state.answer === null ? (
          <p class="empty">
            {stale ? "Nothing to show until the marked input is changed." : waiting}
            {state.busy && question && <Seconds key={asked} says="" />}
          </p>
        ) : (
          children
        )}
      </div>
    </div>
  );
}

const SHOWN_S = 2;

/** How long an answer has been worked on, from two seconds up. */
function Seconds({ says }: { says: string }) {
  const [seconds, set] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => set((old) => old + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  return seconds < SHOWN_S ? null : <span class="stale-note seconds">{` ${says} ${seconds} s`}</span>;
}
