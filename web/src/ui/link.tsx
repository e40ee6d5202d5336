import type { ComponentChildren } from "preact";

import { go } from "../core/route";

interface LinkProps {
  path: string;
  query?: string;
  children: ComponentChildren;
  class?: string;
  current?: boolean;
}

/** A real link that moves without loading the page again; modified clicks stay the browser's. */
export function Link({ path, query = "", children, class: extra, current }: LinkProps) {
  const follow = (event: MouseEvent): void => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    go(path, query);
  };
  return (
    <a href={path + query} class={extra} aria-current={current ? "page" : undefined} onClick={follow}>
      {children}
    </a>
  );
}
