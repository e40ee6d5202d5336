/** Quantities over one linear axis, each a line; read off at a shared cursor. */

import { line } from "d3-shape";
import { useMemo } from "preact/hooks";

import { fill } from "../core/colour";
import { type Axis, type Box, Frame } from "./frame";
import { Cursor, type Reader } from "./read";

export interface Line {
  name: string;
  values: readonly number[];
  colour: string;
}

interface LinesProps {
  lines: readonly Line[];
  reader: Reader;
  box: Box;
  x: Axis;
  y: Axis;
  label: string;
  /** The values at the cursor in words. */
  says: string;
}

/** Later lines are dashed, so that colour is not needed to tell them apart. */
const DASHES = ["", "6 3", "2 3"];

export function Lines({ lines, reader, box, x, y, label, says }: LinesProps) {
  const { xs } = reader;
  const paths = useMemo(
    () =>
      lines.map((one, index) => (
        <path key={one.name} class="wave-line" fill="none" stroke={fill(one.colour)} stroke-dasharray={DASHES[index % DASHES.length]} d={path(one.values, xs, x, y)} />
      )),
    [lines, xs, x, y],
  );
  return (
    <Frame box={box} label={label} x={x} y={y} interactive>
      {paths}
      <Cursor reader={reader} box={box} x={x} label={`Read: ${label}`} text={says} />
    </Frame>
  );
}

const path = (values: readonly number[], xs: readonly number[], x: Axis, y: Axis): string =>
  line<number>((_, i) => x.at(xs[i] ?? 0), (value) => y.at(value))(values as number[]) ?? "";
