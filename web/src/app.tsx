import type { ComponentType } from "preact";
import { useEffect } from "preact/hooks";

import { usePlace } from "./core/route";
import { THEMES, useTheme } from "./core/theme";
import { CopyButton, Announcer } from "./ui/copy";
import { Link } from "./ui/link";
import { CompareView } from "./views/compare";
import { KernelView } from "./views/kernel";
import { ModelView } from "./views/model";
import { PlanView } from "./views/plan";
import { ServeView } from "./views/serve";
import { TraceView } from "./views/trace";

interface View {
  path: string;
  title: string;
  says: string;
  body: ComponentType;
}

const VIEWS: readonly View[] = [
  { path: "/plan", title: "Plan", says: "Which GPU, which split, at what cost", body: PlanView },
  { path: "/serve", title: "Serve", says: "One deployment: times, memory, where the time goes", body: ServeView },
  { path: "/compare", title: "Compare", says: "Two deployments side by side", body: CompareView },
  { path: "/kernel", title: "Kernel", says: "One kernel over a range of sizes, GPU against GPU", body: KernelView },
  { path: "/trace", title: "Trace", says: "A profile: which calls are slower than they need be", body: TraceView },
  { path: "/model", title: "Model", says: "Layers as blocks: bytes, work, cache and state", body: ModelView },
];

/** The query of each view as it was left, so that going back by the tabs loses nothing. */
const left = new Map<string, string>();

export function App() {
  const place = usePlace();
  const view = VIEWS.find((one) => one.path === place.path) ?? VIEWS[0];
  useEffect(() => {
    if (view) {
      left.set(view.path, place.query);
      document.title = `${view.title} · pipewave`;
    }
  }, [view, place.query]);
  if (!view) return null;
  return (
    <>
      <a class="skip" href="#results">
        Skip to results
      </a>
      <Header current={view} />
      <main class="view" key={view.path}>
        <h1 class="view-title">
          {view.title} <span>{view.says}</span>
        </h1>
        <view.body />
      </main>
      <Announcer />
    </>
  );
}

function Header({ current }: { current: View }) {
  return (
    <header class="top">
      <span class="brand">
        <Logo /> pipewave
      </span>
      <nav aria-label="Views">
        {VIEWS.map((view) => (
          <Link key={view.path} path={view.path} query={left.get(view.path) ?? ""} current={view === current}>
            {view.title}
          </Link>
        ))}
      </nav>
      <div class="top-tools">
        <CopyButton text={() => location.href} label="Copy link" what="link to this page" icon="link" />
        <ThemeSwitch />
      </div>
    </header>
  );
}

function ThemeSwitch() {
  const [theme, choose] = useTheme();
  return (
    <label class="theme">
      <span class="hidden">Colours</span>
      <select value={theme} onChange={(event) => choose(event.currentTarget.value as typeof theme)}>
        {THEMES.map((one) => (
          <option key={one} value={one}>
            {one === "auto" ? "System" : one === "light" ? "Light" : "Dark"}
          </option>
        ))}
      </select>
    </label>
  );
}

function Logo() {
  return (
    <svg viewBox="0 0 32 32" width="22" height="22" aria-hidden="true">
      <path d="M3 23h6v-6h6v-5h6V6h8" fill="none" stroke="currentColor" stroke-width="3" stroke-linejoin="round" />
      <path d="M3 28h26" stroke="var(--orange)" stroke-width="2.6" />
    </svg>
  );
}
