/** Marks by shape as well as by colour. */

import { symbol, symbolCircle, symbolCross, symbolDiamond, symbolSquare, symbolStar, symbolTriangle, symbolWye } from "d3-shape";

const SHAPES = [symbolCircle, symbolSquare, symbolTriangle, symbolDiamond, symbolCross, symbolStar, symbolWye, symbolCircle];

export const markPath = (index: number, area = 64): string => symbol(SHAPES[index % SHAPES.length] ?? symbolCircle, area)() ?? "";

export function Mark({ index, colour }: { index: number; colour: string }) {
  return (
    <svg class="mark" viewBox="-8 -8 16 16" width="14" height="14" aria-hidden="true">
      <path d={markPath(index, 90)} fill={colour} />
    </svg>
  );
}
