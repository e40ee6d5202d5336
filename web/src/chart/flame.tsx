/** A tree of times as a flame view: a row a level, widths are times; a click or Enter makes a part the whole. */

import { useState } from "preact/hooks";

import { percent, time } from "../core/format";
import type { FlameRow } from "../core/types";
import { useWidth } from "./frame";

/** A part of the time with what it is made of; `covered_us` of it has a prediction, of `predicted_us`. */
export interface FlameNode {
  name: string;
  us: number;
  count: number;
  covered_us: number;
  predicted_us: number;
  children: Map<string, FlameNode>;
}

const empty = (name: string): FlameNode => ({ name, us: 0, count: 0, covered_us: 0, predicted_us: 0, children: new Map() });

/** Rows by their paths as one tree, in the order in which they first ran. */
export function treeOf(rows: readonly FlameRow[], name: string): FlameNode {
  const root = empty(name);
  for (const row of rows) {
    let node = added(root, row);
    for (const step of row.path) {
      const child = node.children.get(step) ?? empty(step);
      node.children.set(step, child);
      node = added(child, row);
    }
  }
  return root;
}

function added(node: FlameNode, row: FlameRow): FlameNode {
  node.us += row.measured_us;
  node.count += row.count;
  node.covered_us += row.predicted_us === null ? 0 : row.measured_us;
  node.predicted_us += row.predicted_us ?? 0;
  return node;
}

const ROW = 24;
/** Parts under so many pixels are left out of the picture; the table beside has them. */
const THIN = 1.5;

interface Drawn {
  node: FlameNode;
  path: readonly FlameNode[];
  level: number;
  x: number;
  width: number;
}

export function Flame({ root, label }: { root: FlameNode; label: string }) {
  const [holder, width] = useWidth();
  const [path, set] = useState<readonly FlameNode[]>([root]);
  const kept = path[0] === root ? path : [root]; // another trace
  const top = kept.at(-1) ?? root;
  const drawn = laid(top, kept, width);
  const depth = Math.max(...drawn.map((one) => one.level)) + 1;
  return (
    <div ref={holder} class="flame">
      <nav aria-label="Shown part of the trace" class="crumbs">
        {kept.map((one, index) => (
          <button key={index} type="button" class="more" aria-current={one === top ? "true" : undefined} onClick={() => set(kept.slice(0, index + 1))}>
            {one.name}
          </button>
        ))}
      </nav>
      <svg class="chart" role="group" aria-label={`${label}: ${top.name}, ${time(top.us)}`} width={width} height={depth * ROW} viewBox={`0 0 ${width} ${depth * ROW}`}>
        {drawn.map((one) => (
          <Part key={one.path.map((node) => node.name).join("\n")} one={one} whole={root.us} open={() => set(one.path)} />
        ))}
      </svg>
      <ul class="key">
        {KINDS.map(([kind, says]) => (
          <li key={kind}>
            <svg width="14" height="14" aria-hidden="true">
              <rect width="14" height="14" class={`flame-${kind}`} />
            </svg>
            {says}
          </li>
        ))}
      </ul>
    </div>
  );
}

const KINDS = [["near", "as predicted, or faster"], ["slow", "over 10 % slower"], ["slower", "over 50 % slower"], ["unknown", "mostly without a prediction"]] as const;

function kindOf({ us, covered_us, predicted_us }: FlameNode): (typeof KINDS)[number][0] {
  if (covered_us < us / 2) return "unknown";
  const ratio = covered_us / (predicted_us || 1);
  return ratio > 1.5 ? "slower" : ratio > 1.1 ? "slow" : "near";
}

/** Places of a part and all below it. */
function laid(node: FlameNode, path: readonly FlameNode[], width: number, level = 0, x = 0): Drawn[] {
  const out: Drawn[] = [{ node, path, level, x, width }];
  let left = x;
  for (const child of node.children.values()) {
    const wide = node.us > 0 ? (child.us / node.us) * width : 0;
    if (wide >= THIN) out.push(...laid(child, [...path, child], wide, level + 1, left));
    left += wide;
  }
  return out;
}

const LETTER = 7;

function expected({ us, covered_us, predicted_us }: FlameNode): string {
  if (covered_us === 0) return "no prediction";
  return covered_us > 0.999 * us ? `predicted ${time(predicted_us)}` : `${time(covered_us)} of it predicted as ${time(predicted_us)}`;
}

function Part({ one, whole, open }: { one: Drawn; whole: number; open: () => void }) {
  const { node, level, x, width } = one;
  const says = `${node.name}: ${time(node.us)}, ${percent(node.us / (whole || 1))}${node.count > 1 ? `, ${node.count} calls` : ""}, ${expected(node)}`;
  const room = Math.floor((width - 8) / LETTER);
  return (
    <g
      class="flame-part"
      tabindex={width > 8 ? 0 : -1}
      role="button"
      aria-label={says}
      onClick={open}
      onKeyDown={(event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        open();
      }}
    >
      <rect x={x} y={level * ROW} width={Math.max(width - 0.7, 0.7)} height={ROW - 1} class={`flame-${kindOf(node)}`}>
        <title>{says}</title>
      </rect>
      {room > 2 && (
        <text x={x + 4} y={level * ROW + 16} aria-hidden="true" class={`on-flame-${kindOf(node)}`}>
          {node.name.length > room ? `${node.name.slice(0, room - 1)}…` : node.name}
        </text>
      )}
    </g>
  );
}
