import { defineConfig } from "vite";

// The build is committed inside the package, so that an installed pipewave needs neither node nor a network.
export default defineConfig({
  base: "/",
  build: {
    outDir: "../src/pipewave/web/static",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // nothing inline: the page's Content-Security-Policy allows files of its own origin only
    modulePreload: { polyfill: false },
    license: { fileName: "licenses.md" },
  },
  // `npm run dev` beside `pipewave web --port 8000 --no-open`, which answers pages of its own origin only.
  server: {
    proxy: {
      "/api": {
        target: "http://127.0.0.1:8000",
        changeOrigin: true,
        configure: (proxy) => proxy.on("proxyReq", (request) => request.removeHeader("origin")),
      },
    },
  },
});
