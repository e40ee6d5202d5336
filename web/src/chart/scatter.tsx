/** Designs as points: all of them faint, the Pareto front joined by a line and reachable with the arrow keys. */

import { line } from "d3-shape";

import { fill } from "../core/colour";
import type { Design } from "../core/types";
import { type Axis, type Box, Frame, spanX, spanY } from "./frame";
import { markPath } from "./shapes";

export interface Points {
  front: readonly Design[];
  all: readonly Design[];
  x: (design: Design) => number | null;
  y: (design: Design) => number | null;
}

interface ScatterProps {
  points: Points;
  gpus: readonly string[];
  colour: (gpu: string) => string;
  box: Box;
  x: Axis;
  y: Axis;
  /** The user's limit on x, if any: designs right of it do not qualify. */
  limit: number | null;
  selected: Design | null;
  pick: (design: Design) => void;
  describe: (design: Design) => string;
  label: string;
}

export function Scatter(props: ScatterProps) {
  const { points, box, x, y, label } = props;
  const order = placed(points, points.front).sort((a, b) => a.x - b.x);
  const path = line<Placed>((one) => x.at(one.x), (one) => y.at(one.y));
  return (
    <Frame box={box} label={label} x={x} y={y} interactive>
      <g class="cloud">
        {placed(points, points.all).map((one, i) => (
          <path key={i} transform={`translate(${x.at(one.x)},${y.at(one.y)})`} d={markPath(props.gpus.indexOf(one.design.gpu), 22)} fill={fill(props.colour(one.design.gpu))} onClick={() => props.pick(one.design)}>
            <title>{props.describe(one.design)}</title>
          </path>
        ))}
      </g>
      <path d={path(order) ?? ""} class="front-line" />
      {order.map((one, i) => (
        <FrontPoint key={i} one={one} order={order} {...props} />
      ))}
      <Limit {...props} />
      {props.selected && <Ring design={props.selected} {...props} />}
    </Frame>
  );
}

interface Placed {
  design: Design;
  x: number;
  y: number;
}

function placed(points: Points, designs: readonly Design[]): Placed[] {
  return designs.flatMap((design) => {
    const [x, y] = [points.x(design), points.y(design)];
    return x !== null && y !== null && x > 0 && y > 0 ? [{ design, x, y }] : [];
  });
}

function Limit({ limit, x, box }: ScatterProps) {
  const [left, right] = spanX(box);
  const [bottom, top] = spanY(box);
  if (limit === null || x.at(limit) >= right) return null;
  const from = Math.max(x.at(limit), left);
  return (
    <g class="limit">
      <rect x={from} y={top} width={right - from} height={bottom - top} />
      <line x1={from} x2={from} y1={top} y2={bottom} />
      <text x={from + 4} y={top + 12}>
        over your limit
      </text>
    </g>
  );
}

function FrontPoint({ one, order, x, y, gpus, colour, selected, pick, describe }: ScatterProps & { one: Placed; order: readonly Placed[] }) {
  const chosen = one.design === selected;
  const reachable = chosen || (!order.some((other) => other.design === selected) && one === order[0]);
  return (
    <path
      class="front-point"
      transform={`translate(${x.at(one.x)},${y.at(one.y)})`}
      d={markPath(gpus.indexOf(one.design.gpu), 110)}
      fill={fill(colour(one.design.gpu))}
      tabindex={reachable ? 0 : -1}
      role="button"
      aria-pressed={chosen}
      aria-label={describe(one.design)}
      onClick={() => pick(one.design)}
      onKeyDown={(event) => walk(event, order, one, pick)}
    >
      <title>{describe(one.design)}</title>
    </path>
  );
}

/** Arrow keys walk along the front; focus follows the choice. */
function walk(event: KeyboardEvent, order: readonly Placed[], one: Placed, pick: (design: Design) => void): void {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (event.key === "Enter" || event.key === " ") pick(one.design);
  else if (step === undefined) return;
  event.preventDefault();
  const next = step === undefined ? undefined : order[order.indexOf(one) + step];
  if (!next) return;
  pick(next.design);
  const marks = (event.currentTarget as SVGElement).parentElement?.querySelectorAll<SVGElement>(".front-point");
  marks?.[order.indexOf(next)]?.focus();
}

function Ring({ design, points, x, y }: ScatterProps & { design: Design }) {
  const [at, up] = [points.x(design), points.y(design)];
  if (at === null || up === null) return null;
  return <circle class="ring" cx={x.at(at)} cy={y.at(up)} r="10" />;
}
