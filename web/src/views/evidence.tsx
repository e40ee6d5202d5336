/** What the times of an answer rest on and what their intervals hold, in a sentence each; other notes are folded. */

import { percent, word } from "../core/format";
import type { Parts } from "../core/types";
import { Card } from "../ui/copy";
import { Folded, Prose } from "../ui/notes";

const INTERVALS = "90 % intervals"; // begins the note that says what they hold

export function Evidence({ basis, notes, command }: { basis: Parts; notes: readonly string[]; command: string | null }) {
  const shares = Object.entries(basis).filter(([, share]) => share > 0).sort((a, b) => b[1] - a[1]);
  return (
    <Card title="What these numbers stand on" json={{ basis, notes }} command={command}>
      <p>{shares.map(([name, share]) => `${percent(share)} of the time: ${word(name)}`).join(" · ")}</p>
      {notes.filter((note) => note.startsWith(INTERVALS)).map((note) => (
        <p key={note} class="note">
          <Prose text={note} />
        </p>
      ))}
      <Folded notes={notes.filter((note) => !note.startsWith(INTERVALS))} />
    </Card>
  );
}
