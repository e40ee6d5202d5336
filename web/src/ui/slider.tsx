/** A slider with a number beside it: drag for the feeling, type for the value. */

import { digits } from "../core/format";
import { Field, type FieldProps, NumberInput } from "./form";

export interface Scale {
  steps: number;
  at(step: number): number;
  step(value: number): number;
}

/** Sizes: eight steps an octave, rounded so that powers of two are hit exactly. */
export function octaves(from: number, to: number, perOctave = 4): Scale {
  const steps = Math.round(Math.log2(to / from) * perOctave);
  return {
    steps,
    at: (step) => Math.round(from * 2 ** (step / perOctave)),
    step: (value) => Math.round(Math.log2(Math.max(value, from) / from) * perOctave),
  };
}

/** Properties of a GPU: an even ladder from `from` to `to` in multiples of `unit`. */
export function ladder(from: number, to: number, unit: number): Scale {
  return {
    steps: Math.max(Math.round((to - from) / unit), 1),
    at: (step) => Number((from + step * unit).toPrecision(8)),
    step: (value) => Math.round((value - from) / unit),
  };
}

type SliderProps = FieldProps & {
  value: number;
  set: (value: number, passing: boolean) => void;
  scale: Scale;
  /** The value without a change; shows how far the slider is from it and a way back. */
  base?: number | undefined;
  reset?: () => void;
};

export function Slider({ value, set, scale, base, reset, ...field }: SliderProps) {
  const changed = base !== undefined && value !== base;
  const step = Math.min(Math.max(scale.step(value), 0), scale.steps);
  return (
    <Field {...field}>
      {(wiring) => (
        <div class="slider">
          <input
            {...wiring}
            type="range"
            min={0}
            max={scale.steps}
            value={step}
            aria-valuetext={`${digits(value, 4)} ${field.unit ?? ""}`}
            onInput={(event) => set(scale.at(Number(event.currentTarget.value)), true)}
            onChange={(event) => set(scale.at(Number(event.currentTarget.value)), false)}
          />
          <NumberInput wiring={{ "aria-label": `${field.label}, exact` }} value={value} set={(exact) => set(exact, false)} />
          {base !== undefined && (
            <button type="button" class="reset" disabled={!changed} onClick={reset} aria-label={`${says(value, base)}: reset ${field.label} to ${digits(base, 4)}`}>
              {says(value, base)} {changed && <span aria-hidden="true">↺</span>}
            </button>
          )}
        </div>
      )}
    </Field>
  );
}

const says = (value: number, base: number): string => (value === base ? "as is" : `×${digits(value / base)}`);
