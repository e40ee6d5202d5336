/** What the pointer and the keys move over a whole plot: to a screen reader a slider, whose value is said in words. */

import { type Box, spanX, spanY } from "./frame";

interface SurfaceProps {
  box: Box;
  label: string;
  /** What the present place shows. */
  text: string;
  index: number;
  places: number;
  onPoint: (event: PointerEvent) => void;
  onKey: (event: KeyboardEvent) => void;
}

export function Surface({ box, label, text, index, places, onPoint, onKey }: SurfaceProps) {
  const [left, right] = spanX(box);
  const [bottom, top] = spanY(box);
  return (
    <rect
      class="surface"
      x={left}
      y={top}
      width={Math.max(right - left, 0)}
      height={Math.max(bottom - top, 0)}
      tabindex={0}
      role="slider"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={places - 1}
      aria-valuenow={index}
      aria-valuetext={text}
      onPointerMove={onPoint}
      onPointerDown={onPoint}
      onKeyDown={onKey}
    />
  );
}
