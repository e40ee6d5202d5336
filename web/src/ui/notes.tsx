/** What an answer assumes or substitutes, in the library's words: every answer that has notes shows them. */

import { Card } from "./copy";

export function Notes({ notes, title = "Notes" }: { notes: readonly string[]; title?: string }) {
  const each = [...new Set(notes)].filter(Boolean);
  if (!each.length) return null;
  return (
    <Card title={title} json={each}>
      <ul class="notes">
        {each.map((note) => (
          <li key={note}>{note}</li>
        ))}
      </ul>
    </Card>
  );
}
