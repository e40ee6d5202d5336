/** What every chart shares: a width that follows the page, axes, grid, and titles in words. */

import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

export interface Axis {
  /** Position in pixels of a value. */
  at(value: number): number;
  ticks: readonly number[];
  show(value: number): string;
  title: string;
}

export interface Box {
  width: number;
  height: number;
  left: number;
  right: number;
  top: number;
  bottom: number;
}

export function useWidth(): [RefObject<HTMLDivElement | null>, number] {
  const box = useRef<HTMLDivElement>(null);
  const [width, set] = useState(640);
  useEffect(() => {
    if (!box.current) return;
    const watch = new ResizeObserver(([entry]) => entry && set(Math.max(Math.round(entry.contentRect.width), 240)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return [box, width];
}

export const plotBox = (width: number, height: number, margins: Partial<Box> = {}): Box => ({
  width,
  height,
  left: 54,
  right: 12,
  top: 18,
  bottom: 34,
  ...margins,
});

export const spanX = (box: Box): [number, number] => [box.left, box.width - box.right];
export const spanY = (box: Box): [number, number] => [box.height - box.bottom, box.top];

interface FrameProps {
  box: Box;
  label: string;
  x?: Axis;
  y?: Axis;
  /** It holds something to focus, so it is no mere image. */
  interactive?: boolean;
  children: ComponentChildren;
}

/** One image (or group) to a screen reader; the numbers are in the table near it. */
export function Frame({ box, label, x, y, interactive = false, children }: FrameProps) {
  return (
    <svg class="chart" role={interactive ? "group" : "img"} aria-label={label} width={box.width} height={box.height} viewBox={`0 0 ${box.width} ${box.height}`}>
      {y && <AxisY axis={y} box={box} />}
      {x && <AxisX axis={x} box={box} />}
      {children}
    </svg>
  );
}

function AxisX({ axis, box }: { axis: Axis; box: Box }) {
  const [bottom, top] = spanY(box);
  const [left, right] = spanX(box);
  return (
    <g class="axis">
      {apart(axis.ticks, axis.at, 50).map((tick) => (
        <g key={tick}>
          <line x1={axis.at(tick)} x2={axis.at(tick)} y1={bottom} y2={top} class="grid" />
          <text x={axis.at(tick)} y={bottom + 14} text-anchor="middle">
            {axis.show(tick)}
          </text>
        </g>
      ))}
      <line x1={left} x2={right} y1={bottom} y2={bottom} class="base" />
      <text x={right} y={bottom + 29} text-anchor="end" class="axis-title">
        {axis.title}
      </text>
    </g>
  );
}

function AxisY({ axis, box }: { axis: Axis; box: Box }) {
  const [left, right] = spanX(box);
  return (
    <g class="axis">
      {apart(axis.ticks, axis.at, 18).map((tick) => (
        <g key={tick}>
          <line x1={left} x2={right} y1={axis.at(tick)} y2={axis.at(tick)} class="grid" />
          <text x={left - 6} y={axis.at(tick) + 4} text-anchor="end">
            {axis.show(tick)}
          </text>
        </g>
      ))}
      <text x={2} y={box.top - 7} class="axis-title">
        {axis.title}
      </text>
    </g>
  );
}

/** Ticks far enough apart for their labels: every second, third, … of them. */
function apart(ticks: readonly number[], at: (value: number) => number, least: number): number[] {
  for (let every = 1; every < ticks.length; every++) {
    const kept = ticks.filter((_, index) => index % every === 0);
    if (kept.every((tick, i) => i === 0 || Math.abs(at(tick) - at(kept[i - 1] ?? tick)) >= least)) return kept;
  }
  return ticks.slice(0, 1);
}
