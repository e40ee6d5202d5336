/** Where we are: the path names the view, the query string holds every input, so a URL is a result. Its fragment holds
 * files of one's own (core/own.ts) and goes from view to view; browsers never send it to a server. */

import { useLayoutEffect, useState } from "preact/hooks";

export interface Place {
  path: string;
  query: string;
}

const listeners = new Set<(place: Place) => void>();

const here = (): Place => ({ path: location.pathname, query: location.search });

/** Move to another place; `replace` leaves no step in the browser's history (a slider on its way). */
export function go(path: string, query: string, replace = false): void {
  if (path + query === location.pathname + location.search) return;
  const url = path + query + location.hash;
  history[replace ? "replaceState" : "pushState"](null, "", url);
  announce();
}

function announce(): void {
  for (const listener of listeners) listener(here());
}

export function usePlace(): Place {
  const [place, set] = useState(here);
  // As the view is drawn, not after the next frame: the browser may go back once more in between.
  useLayoutEffect(() => {
    listeners.add(set);
    addEventListener("popstate", announce);
    return () => {
      listeners.delete(set);
      removeEventListener("popstate", announce);
    };
  }, []);
  return place;
}
