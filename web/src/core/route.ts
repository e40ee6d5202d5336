/** Where we are: the path names the view, the query string holds every input, so a URL is a result. */

import { useEffect, useState } from "preact/hooks";

export interface Place {
  path: string;
  query: string;
}

const listeners = new Set<(place: Place) => void>();

const here = (): Place => ({ path: location.pathname, query: location.search });

/** Move to another place; `replace` leaves no step in the browser's history (a slider on its way). */
export function go(path: string, query: string, replace = false): void {
  const url = path + query;
  if (url === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", url);
  announce();
}

function announce(): void {
  for (const listener of listeners) listener(here());
}

export function usePlace(): Place {
  const [place, set] = useState(here);
  useEffect(() => {
    listeners.add(set);
    addEventListener("popstate", announce);
    return () => {
      listeners.delete(set);
      removeEventListener("popstate", announce);
    };
  }, []);
  return place;
}
