/** Light, dark or as the system says; remembered in this browser only. */

import { useState } from "preact/hooks";

export type Theme = "auto" | "light" | "dark";
export const THEMES: readonly Theme[] = ["auto", "light", "dark"];
const KEY = "pipewave-theme";

function stored(): Theme {
  try {
    return THEMES.find((theme) => theme === localStorage.getItem(KEY)) ?? "auto";
  } catch {
    return "auto"; // storage switched off
  }
}

function apply(theme: Theme): void {
  if (theme === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
}

export const restoreTheme = (): void => apply(stored());

export function useTheme(): [Theme, (theme: Theme) => void] {
  const [theme, set] = useState(stored);
  const choose = (next: Theme): void => {
    apply(next);
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // storage switched off: the choice lasts as long as the page
    }
    set(next);
  };
  return [theme, choose];
}
