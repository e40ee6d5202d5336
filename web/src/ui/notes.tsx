/** What an answer assumes or substitutes, in the library's words: every answer that has notes shows them, several folded. */

import { Card } from "./copy";

/** Words of the library; what stands between backticks is code. */
export function Prose({ text }: { text: string }) {
  return <>{text.split("`").map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part))}</>;
}

export function Notes({ notes, title = "Notes" }: { notes: readonly string[]; title?: string }) {
  const each = [...new Set(notes)].filter(Boolean);
  if (!each.length) return null;
  return (
    <Card title={title} json={each}>
      <Folded notes={each} />
    </Card>
  );
}

/** One note as it is, several behind their number. */
export function Folded({ notes }: { notes: readonly string[] }) {
  const listed = (
    <ul class="notes">
      {notes.map((note) => (
        <li key={note}>
          <Prose text={note} />
        </li>
      ))}
    </ul>
  );
  if (notes.length < 2) return notes.length ? listed : null;
  return (
    <details class="reasons-all">
      <summary>{notes.length} notes</summary>
      {listed}
    </details>
  );
}
