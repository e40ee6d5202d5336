/** One engine step, kernel after kernel: a lane a family, so that colour is not needed to tell them apart. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { familyColour, fill } from "../core/colour";
import { tickTime, time, word } from "../core/format";
import type { StepPart } from "../core/types";
import { Frame, plotBox, spanX, spanY, useWidth } from "./frame";
import { linear } from "./scales";

const LANE = 20;
type Window = readonly [number, number];

export function Timeline({ kernels, label }: { kernels: readonly StepPart[]; label: string }) {
  const [holder, width] = useWidth();
  const end = useMemo(() => kernels.reduce((last, one) => Math.max(last, one.start_us + one.duration_us), 1), [kernels]);
  const [window, setWindow] = useState<Window | null>(null);
  const shown: Window = window && window[1] <= end * 1.001 ? window : [0, end];
  const lanes = useMemo(() => byFamily(kernels), [kernels]);
  const box = plotBox(width, lanes.length * LANE + 56, { left: width < 520 ? 88 : 112, top: 10, bottom: 36 });
  const x = linear(shown, spanX(box), "time in the step", tickTime);
  x.at = between(shown, spanX(box));
  x.ticks = x.ticks.filter((tick) => tick >= shown[0] && tick <= shown[1]);
  return (
    <div ref={holder}>
      <Zoom shown={shown} end={end} set={setWindow} />
      <Surface shown={shown} end={end} set={setWindow} span={spanX(box)}>
        <Frame box={box} label={`${label}: ${kernels.length} parts in ${time(end)}`} x={x}>
          {lanes.map(([family, members], row) => (
            <g key={family}>
              <text x={box.left - 8} y={box.top + row * LANE + 14} text-anchor="end" class="lane-title">
                {word(family)}
              </text>
              {visible(members, shown, x.at).map((one) => (
                <rect key={one.key} x={one.x} width={one.width} y={box.top + row * LANE + 3} height={LANE - 5} fill={fill(familyColour(family))}>
                  <title>{one.says}</title>
                </rect>
              ))}
            </g>
          ))}
          <line x1={box.left} x2={box.left} y1={spanY(box)[0]} y2={box.top} class="base" />
        </Frame>
      </Surface>
    </div>
  );
}

const between =
  ([from, to]: Window, [left, right]: Window) =>
  (value: number): number =>
    left + ((value - from) / (to - from || 1)) * (right - left);

function byFamily(kernels: readonly StepPart[]): [string, StepPart[]][] {
  const lanes = new Map<string, StepPart[]>();
  for (const one of kernels) lanes.set(one.family, [...(lanes.get(one.family) ?? []), one]);
  const busy = (members: StepPart[]): number => members.reduce((sum, one) => sum + one.duration_us, 0);
  return [...lanes.entries()].sort((a, b) => busy(b[1]) - busy(a[1]));
}

interface Shown {
  key: number;
  x: number;
  width: number;
  says: string;
}

/** Kernels closer than a pixel are drawn as one, so that a thousand of them cost no more than the picture is wide. */
function visible(members: readonly StepPart[], [from, to]: Window, at: (us: number) => number): Shown[] {
  const out: Shown[] = [];
  for (const one of members) {
    if (one.start_us + one.duration_us < from || one.start_us > to) continue;
    const x = at(Math.max(one.start_us, from));
    const width = Math.max(at(Math.min(one.start_us + one.duration_us, to)) - x, 0.7);
    const last = out.at(-1);
    if (last && x + width - (last.x + last.width) < 0.7) continue;
    out.push({ key: one.start_us, x, width, says: `${one.name}${one.count > 1 ? ` × ${one.count}` : ""}: ${time(one.duration_us)} from ${time(one.start_us)}` });
  }
  return out;
}

interface WindowProps {
  shown: Window;
  end: number;
  set: (window: Window | null) => void;
}

function zoomed([from, to]: Window, end: number, factor: number, around = (from + to) / 2): Window {
  const span = Math.min((to - from) * factor, end);
  const start = Math.min(Math.max(around - ((around - from) / (to - from)) * span, 0), end - span);
  return [start, start + span];
}

const moved = ([from, to]: Window, end: number, by: number): Window => {
  const start = Math.min(Math.max(from + by, 0), end - (to - from));
  return [start, start + (to - from)];
};

function Zoom({ shown, end, set }: WindowProps) {
  const step = (shown[1] - shown[0]) / 3;
  const wide = shown[1] - shown[0] >= end * 0.999;
  return (
    <div class="zoom" role="group" aria-label="Part of the step shown">
      <button type="button" onClick={() => set(zoomed(shown, end, 0.4))} aria-label="Zoom in">+</button>
      <button type="button" disabled={wide} onClick={() => set(zoomed(shown, end, 2.5))} aria-label="Zoom out">−</button>
      <button type="button" disabled={shown[0] <= 0} onClick={() => set(moved(shown, end, -step))} aria-label="Earlier">‹</button>
      <button type="button" disabled={shown[1] >= end} onClick={() => set(moved(shown, end, step))} aria-label="Later">›</button>
      <button type="button" disabled={wide} onClick={() => set(null)}>Whole step</button>
      <output>
        {time(shown[0])} – {time(shown[1])} of {time(end)}
      </output>
    </div>
  );
}

/** Ctrl + wheel zooms at the pointer, dragging moves; the buttons above do the same from the keyboard. */
function Surface({ shown, end, set, span, children }: WindowProps & { span: Window; children: preact.ComponentChildren }) {
  const drag = useRef<{ at: number; shown: Window } | null>(null);
  const box = useRef<HTMLDivElement>(null);
  const perPixel = (shown[1] - shown[0]) / (span[1] - span[0]);
  useEffect(() => {
    const wheel = (event: WheelEvent): void => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const at = shown[0] + (event.offsetX - span[0]) * perPixel;
      set(zoomed(shown, end, event.deltaY > 0 ? 1.25 : 0.8, at));
    };
    const element = box.current;
    element?.addEventListener("wheel", wheel, { passive: false });
    return () => element?.removeEventListener("wheel", wheel);
  });
  const start = (event: PointerEvent): void => void (drag.current = { at: event.clientX, shown });
  const move = (event: PointerEvent): void => {
    if (drag.current && event.buttons) set(moved(drag.current.shown, end, (drag.current.at - event.clientX) * perPixel));
  };
  return (
    <div ref={box} class="timeline" onPointerDown={start} onPointerMove={move} onPointerUp={() => (drag.current = null)}>
      {children}
    </div>
  );
}
