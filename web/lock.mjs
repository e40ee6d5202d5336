// Writes build.lock: one hash of the sources and one of the files built from them. tests/web/browser compares both.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const SOURCES = ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.mjs", "src", "public"];
const BUILT = "../src/pipewave/web/static";

function files(path) {
  try {
    return readdirSync(path).flatMap((name) => files(join(path, name)));
  } catch (problem) {
    if (problem.code === "ENOTDIR") return [path];
    throw problem;
  }
}

// Lines "sha256  path" sorted by path, hashed again: what tests/web/browser/test_build.py computes.
function digest(paths, root) {
  const lines = paths
    .map((path) => [path.slice(root.length).replaceAll("\\", "/"), createHash("sha256").update(readFileSync(path)).digest("hex")])
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([path, hash]) => `${hash}  ${path}\n`);
  return createHash("sha256").update(lines.join("")).digest("hex");
}

const sources = digest(SOURCES.flatMap((path) => files(path)), "");
const built = digest(files(BUILT), `${BUILT}/`);
writeFileSync("build.lock", JSON.stringify({ sources, built }, null, 2) + "\n");
