/** Labelled inputs. The server's message about a field stands under that field. */

import { type ComponentChildren, createContext } from "preact";
import { useContext, useId, useState } from "preact/hooks";

import type { ApiError } from "../core/api";

const Trouble = createContext<ApiError | null>(null);

interface FormProps {
  error: ApiError | null;
  /** Names of the server's fields that have an input here. */
  known: readonly string[];
  label: string;
  children: ComponentChildren;
}

export function Form({ error, known, label, children }: FormProps) {
  const elsewhere = error !== null && !concerns(error, known);
  return (
    <Trouble.Provider value={error}>
      <form class="inputs" aria-label={label} onSubmit={(event) => event.preventDefault()}>
        {elsewhere && <Alert error={error} />}
        {children}
      </form>
    </Trouble.Provider>
  );
}

/** Errors name fields as "tp", "case.n" or "gpus[2]". */
function concerns({ field }: ApiError, names: readonly string[]): boolean {
  return field !== null && names.some((name) => field === name || field.startsWith(`${name}.`) || field.startsWith(`${name}[`));
}

export function Alert({ error }: { error: ApiError }) {
  return (
    <p class="alert" role="alert">
      {error.message}
    </p>
  );
}

/** On a phone groups begin closed, so that results start on the first screen; a complaint opens them. */
const PHONE = matchMedia("(max-width: 560px)");

export function Group({ title, children, open = true }: { title: string; children: ComponentChildren; open?: boolean }) {
  const error = useContext(Trouble);
  return (
    <details class="group" open={(open && !PHONE.matches) || error !== null}>
      <summary>{title}</summary>
      <div class="group-body">{children}</div>
    </details>
  );
}

export interface FieldProps {
  label: string;
  /** Name of the field in the API, and other names its errors may use. */
  name: string;
  also?: readonly string[];
  unit?: string;
  hint?: string | undefined;
}

export interface Wiring {
  id: string;
  "aria-invalid": boolean | undefined;
  "aria-describedby": string | undefined;
}

/** The frame of one input: label, unit, hint, and the server's complaint. */
export function Field({ label, name, also = [], unit, hint, children }: FieldProps & { children: (wiring: Wiring) => ComponentChildren }) {
  const id = useId();
  const error = useContext(Trouble);
  const wrong = error !== null && concerns(error, [name, ...also]);
  const described = wrong ? `${id}-error` : hint ? `${id}-hint` : undefined;
  return (
    <div class={`field${wrong ? " wrong" : ""}`} data-field={name}>
      <label for={id}>
        {label}
        {unit && <span class="unit"> {unit}</span>}
      </label>
      {children({ id, "aria-invalid": wrong || undefined, "aria-describedby": described })}
      {wrong && (
        <p class="field-error" id={`${id}-error`} role="alert">
          {error.message}
        </p>
      )}
      {hint && !wrong && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

type NumberProps = FieldProps & {
  value: number | null;
  set: (value: number) => void;
  clear?: () => void;
  step?: number | "any";
  placeholder?: string;
};

export function NumberField({ value, set, clear, step = "any", placeholder, ...field }: NumberProps) {
  return (
    <Field {...field}>
      {(wiring) => <NumberInput wiring={wiring} value={value} set={set} clear={clear} step={step} placeholder={placeholder} />}
    </Field>
  );
}

interface NumberInputProps {
  wiring: Partial<Wiring> & { "aria-label"?: string };
  value: number | null;
  set: (value: number) => void;
  clear?: (() => void) | undefined;
  step?: number | "any";
  placeholder?: string | undefined;
}

/** Only a finished number leaves the box, so a half-typed one is neither asked for nor put in the URL. */
export function NumberInput({ wiring, value, set, clear, step = "any", placeholder }: NumberInputProps) {
  const [draft, setDraft] = useState<string | null>(null);
  const typed = (text: string): void => {
    setDraft(text);
    if (text.trim() === "") clear?.();
    else if (Number.isFinite(Number(text))) set(Number(text));
  };
  return (
    <input
      {...wiring}
      type="number"
      inputMode="decimal"
      step={step}
      placeholder={placeholder}
      value={draft ?? (value === null ? "" : String(value))}
      onInput={(event) => typed(event.currentTarget.value)}
      onBlur={() => setDraft(null)}
    />
  );
}

type TextProps = FieldProps & { value: string; set: (value: string) => void; options?: readonly string[]; placeholder?: string };

/** Free text with suggestions; sent when finished (Enter, leaving the box, or picking a suggestion). */
export function TextField({ value, set, options, placeholder, ...field }: TextProps) {
  const [draft, setDraft] = useState<string | null>(null);
  const finish = (text: string): void => {
    setDraft(null);
    if (text !== value) set(text);
  };
  const typed = (text: string): void => (options?.includes(text) ? finish(text) : setDraft(text));
  return (
    <Field {...field}>
      {(wiring) => (
        <>
          <input
            {...wiring}
            type="text"
            autocomplete="off"
            spellcheck={false}
            placeholder={placeholder}
            list={options ? `${wiring.id}-list` : undefined}
            value={draft ?? value}
            onInput={(event) => typed(event.currentTarget.value)}
            onChange={(event) => finish(event.currentTarget.value)}
          />
          {options && (
            <datalist id={`${wiring.id}-list`}>
              {options.map((option) => (
                <option key={option} value={option} />
              ))}
            </datalist>
          )}
          {options && options.length > 0 && (
            <select class="browse" aria-label="Browse the list" value="" onChange={(event) => finish(event.currentTarget.value)}>
              <option value="">{`Browse all ${options.length}…`}</option>
              {options.map((option) => (
                <option key={option} value={option}>
                  {option}
                </option>
              ))}
            </select>
          )}
        </>
      )}
    </Field>
  );
}

type ChoiceProps = FieldProps & { value: string; set: (value: string) => void; options: readonly (string | readonly [string, string])[] };

export function Choice({ value, set, options, ...field }: ChoiceProps) {
  const pairs = options.map((option) => (typeof option === "string" ? ([option, option] as const) : option));
  const shown = pairs.some(([key]) => key === value) ? pairs : [[value, value] as const, ...pairs];
  return (
    <Field {...field}>
      {(wiring) => (
        <select {...wiring} value={value} onChange={(event) => set(event.currentTarget.value)}>
          {shown.map(([key, label]) => (
            <option key={key} value={key}>
              {label}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

/** One of a few, as buttons side by side. */
export function Segments<T extends string>({ label, value, set, options }: { label: string; value: T; set: (value: T) => void; options: readonly (readonly [T, string])[] }) {
  const name = useId();
  return (
    <fieldset class="segments">
      <legend class="hidden">{label}</legend>
      {options.map(([key, says]) => (
        <label key={key}>
          <input type="radio" name={name} checked={key === value} onChange={() => set(key)} />
          <span>{says}</span>
        </label>
      ))}
    </fieldset>
  );
}

export function Check({ label, value, set }: { label: string; value: boolean; set: (value: boolean) => void }) {
  return (
    <label class="check">
      <input type="checkbox" checked={value} onChange={(event) => set(event.currentTarget.checked)} /> {label}
    </label>
  );
}
