/** The answer to the latest question, asked again whenever the question changes. */

import { useEffect, useRef, useState } from "preact/hooks";

import { ApiError, ask, type Body } from "./api";

export interface Latest<T> {
  answer: T | null;
  error: ApiError | null;
  busy: boolean;
}

const PATIENCE_MS = 400;

/**
 * At most one request is under way. A newer question waits for an animation frame and for the answer on its way,
 * because cancelling at every step of a slider would starve the picture; an answer that takes longer is cancelled.
 * `calm_ms`: for expensive questions, how long nobody must have typed.
 */
export function useLatest<T>(path: string, body: Record<string, unknown> | null, calm_ms = 0): Latest<T> {
  const [state, set] = useState<Latest<T>>({ answer: null, error: null, busy: true });
  const desk = useRef<Desk<T> | null>(null);
  desk.current ??= new Desk<T>(path, calm_ms, set);
  const key = JSON.stringify(body);
  useEffect(() => {
    if (key !== "null") desk.current?.wants(JSON.parse(key) as Record<string, unknown>);
  }, [key]);
  useEffect(() => () => desk.current?.close(), []);
  return state;
}

class Desk<T> {
  private waiting: Record<string, unknown> | null = null;
  private current: { abort: AbortController; since: number } | null = null;
  private frame = 0;
  private timer = 0;
  private closed = false;

  constructor(
    private readonly path: string,
    private readonly calm_ms: number,
    private readonly set: (update: (old: Latest<T>) => Latest<T>) => void,
  ) {}

  wants(body: Record<string, unknown>): void {
    this.waiting = body;
    this.set((old) => (old.busy ? old : { ...old, busy: true })); // what is shown answers another question from now on
    if (this.current && performance.now() - this.current.since > PATIENCE_MS) this.current.abort.abort();
    clearTimeout(this.timer);
    if (this.calm_ms > 0) this.timer = setTimeout(() => this.send(), this.calm_ms);
    else
      this.frame ||= requestAnimationFrame(() => {
        this.frame = 0;
        this.send();
      });
  }

  close(): void {
    this.closed = true;
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    this.current?.abort.abort();
  }

  private send(): void {
    if (this.current || !this.waiting || this.closed) return;
    const body: Body = this.waiting;
    this.waiting = null;
    const abort = new AbortController();
    this.current = { abort, since: performance.now() };
    ask<T>(this.path, body, abort.signal).then(
      (answer) => this.done({ answer, error: null }),
      (problem: unknown) => this.failed(problem),
    );
  }

  private failed(problem: unknown): void {
    if (problem instanceof ApiError) this.done({ error: problem });
    else if (problem instanceof DOMException && problem.name === "AbortError") this.done({});
    else throw problem;
  }

  private done(news: Partial<Latest<T>>): void {
    this.current = null;
    if (this.closed) return;
    this.set((old) => ({ ...old, ...news, busy: this.waiting !== null }));
    this.send();
  }
}

/** A list that does not change while the page is open. */
const kept = new Map<string, Promise<unknown>>();

export function useList<T>(path: string): T[] {
  const [items, set] = useState<T[]>([]);
  useEffect(() => {
    if (!kept.has(path)) kept.set(path, ask<T[]>(path).catch(() => (kept.delete(path), [])));
    void (kept.get(path) as Promise<T[]>).then(set);
  }, [path]);
  return items;
}
