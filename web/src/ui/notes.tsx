/** What an answer assumes or substitutes, in the library's words: every answer that has notes shows them. */

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
      <ul class="notes">
        {each.map((note) => (
          <li key={note}>
            <Prose text={note} />
          </li>
        ))}
      </ul>
    </Card>
  );
}
