/** Every number can be taken away: as JSON, or as the command that gives it. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

const heard = new Set<(text: string) => void>();

export const announce = (text: string): void => heard.forEach((listener) => listener(text));

/** Says "copied" to people who see and to those who listen. */
export function Announcer() {
  const [text, set] = useState("");
  useEffect(() => {
    heard.add(set);
    return () => void heard.delete(set);
  }, []);
  useEffect(() => {
    if (!text) return;
    const timer = setTimeout(() => set(""), 1800);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <div class={`toast${text ? " on" : ""}`} role="status" aria-live="polite">
      {text}
    </div>
  );
}

async function put(text: string, what: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    byHand(text); // no permission, or a page that is not on a loopback address
  }
  announce(`Copied: ${what}`);
}

function byHand(text: string): void {
  const box = document.createElement("textarea");
  box.value = text;
  box.className = "hidden";
  document.body.append(box);
  box.select();
  document.execCommand("copy");
  box.remove();
}

const ICONS = {
  json: "M7 3H6a2 2 0 0 0-2 2v2a2 2 0 0 1-2 2 2 2 0 0 1 2 2v2a2 2 0 0 0 2 2h1M11 3h1a2 2 0 0 1 2 2v2a2 2 0 0 0 2 2 2 2 0 0 0-2 2v2a2 2 0 0 1-2 2h-1",
  command: "M3 5l4 4-4 4M9 14h6",
  link: "M8 10a3 3 0 0 0 4 0l3-3a3 3 0 0 0-4-4l-1 1M10 8a3 3 0 0 0-4 0l-3 3a3 3 0 0 0 4 4l1-1",
};

interface CopyButtonProps {
  text: () => string;
  label: string;
  /** What is copied, for the message and for screen readers. */
  what: string;
  icon: keyof typeof ICONS;
}

export function CopyButton({ text, label, what, icon }: CopyButtonProps) {
  return (
    <button type="button" class="copy" aria-label={`Copy ${what}`} title={`Copy ${what}`} onClick={() => void put(text(), what)}>
      <svg viewBox="0 0 18 18" width="14" height="14" aria-hidden="true">
        <path d={ICONS[icon]} fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round" />
      </svg>
      <span>{label}</span>
    </button>
  );
}

interface CardProps {
  title: string;
  json?: unknown;
  command?: string | null;
  note?: ComponentChildren;
  tools?: ComponentChildren;
  class?: string;
  children: ComponentChildren;
}

/** A block of numbers with its title and its two ways out. */
export function Card({ title, json, command, note, tools, children, class: extra = "" }: CardProps) {
  return (
    <section class={`card ${extra}`} aria-label={title}>
      <header>
        <h2>{title}</h2>
        <div class="card-tools">
          {tools}
          {json !== undefined && (
            <CopyButton text={() => JSON.stringify(json, null, 2)} label="JSON" what={`${title} as JSON`} icon="json" />
          )}
          {command && <CopyButton text={() => command} label="Command" what={`the command for ${title}`} icon="command" />}
        </div>
      </header>
      {note !== undefined && <p class="note">{note}</p>}
      {children}
    </section>
  );
}
