/** Reading values off a chart with the mouse, a finger or the arrow keys: all move one index along x. */

import { useCallback } from "preact/hooks";

import { type Axis, type Box, spanY } from "./frame";
import { Surface } from "./surface";

export interface Reader {
  index: number;
  /** From the present index to the next: keys may come faster than pictures. */
  move: (step: (index: number) => number) => void;
  xs: readonly number[];
}

interface CursorProps {
  reader: Reader;
  box: Box;
  x: Axis;
  label: string;
  text: string;
}

/** The vertical line, and over the whole plot the surface that moves it. */
export function Cursor({ reader, box, x, label, text }: CursorProps) {
  const { index, xs, move } = reader;
  const [bottom, top] = spanY(box);
  const point = useCallback((event: PointerEvent) => move(() => nearest(xs, x, event)), [xs, x, move]);
  const place = x.at(xs[index] ?? 1);
  return (
    <g>
      <line x1={place} x2={place} y1={bottom} y2={top} class="cursor" />
      <Surface box={box} label={label} text={text} index={index} places={xs.length} onPoint={point} onKey={(event) => step(event, reader)} />
    </g>
  );
}

function nearest(xs: readonly number[], x: Axis, event: PointerEvent): number {
  const svg = (event.currentTarget as SVGElement).ownerSVGElement;
  const place = event.clientX - (svg?.getBoundingClientRect().left ?? 0);
  let best = 0;
  xs.forEach((value, i) => {
    if (Math.abs(x.at(value) - place) < Math.abs(x.at(xs[best] ?? value) - place)) best = i;
  });
  return best;
}

const MOVES: Record<string, (index: number, last: number) => number> = {
  ArrowRight: (i) => i + 1,
  ArrowUp: (i) => i + 1,
  ArrowLeft: (i) => i - 1,
  ArrowDown: (i) => i - 1,
  PageUp: (i) => i + 10,
  PageDown: (i) => i - 10,
  Home: () => 0,
  End: (_, last) => last,
};

function step(event: KeyboardEvent, { move, xs }: Reader): void {
  const next = MOVES[event.key];
  if (!next) return;
  event.preventDefault();
  move((index) => Math.min(Math.max(next(index, xs.length - 1), 0), xs.length - 1));
}
