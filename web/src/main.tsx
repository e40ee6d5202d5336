import { render } from "preact";

import { App } from "./app";
import { restoreTheme } from "./core/theme";

restoreTheme();
const root = document.getElementById("app");
if (root) render(<App />, root);
