// A Chromium with tabs, told what to do line by line, and the server of the pages that they open.
// Asked: {chromium, port, folder, pages: {name: source}}. Told: {number, on, method, args, as?}: a method of Playwright on
// "browser", or on the context or page that was called `as` when it was made.

import { createServer } from "node:http";
import { createInterface } from "node:readline";

import { build } from "esbuild";
import { chromium } from "playwright-core";

import { asked, brief, ending, say } from "./report.mjs";

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

// What lies about a profile goes where the test's other files go, and with them.
process.env.TMPDIR = process.env.HOME = asked.folder;

async function bundled(source) {
  const stdin = { contents: source, loader: "jsx", resolveDir: import.meta.dirname };
  // Strict pages are what their authors see while they write them, with an error on the console for each mistake.
  const mode = source.includes("<StrictMode>") ? "development" : "production";
  const define = { "process.env.NODE_ENV": JSON.stringify(mode) };
  const made = await build({ stdin, define, bundle: true, format: "esm", jsx: "automatic", write: false });
  return made.outputFiles[0].text;
}

async function serve() {
  const scripts = {};
  for (const [name, source] of Object.entries(asked.pages)) scripts[`/${name}.js`] = await bundled(source);
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url, "http://page");
    const script = scripts[pathname];
    const page = `<!doctype html><link rel="icon" href="data:,"><div id="chat"></div><script type="module" src="${pathname}.js"></script>`;
    response.setHeader("Content-Type", script === undefined ? "text/html" : "text/javascript");
    response.end(script ?? page);
  });
  await new Promise((listening) => server.listen(asked.port, "127.0.0.1", listening));
  return server;
}

function watch(tab, page) {
  page.on("pageerror", (error) => say("error", { tab, ...brief(error) }));
  page.on("console", (line) => line.type() === "error" && say("console", { tab, text: line.text() }));
  page.on("request", (request) => {
    if (!request.url().includes("/api/")) return;
    say("request", { tab, method: request.method(), url: request.url(), headers: request.headers() });
  });
}

async function obey(things, { number, on, method, args, as }) {
  try {
    const value = await things.get(on)[method](...args);
    if (as !== null) things.set(as, value);
    if (method === "newPage") watch(as, value);
    say("reply", { number, value: as === null && method === "evaluate" ? (value ?? null) : null });
  } catch (error) {
    say("reply", { number, error: error.message });
  }
}

await ending(async () => {
  const server = await serve();
  const browser = await chromium.launch({
    executablePath: asked.chromium,
    args: FLAGS,
    ignoreDefaultArgs: ["--disable-back-forward-cache"], // as users have it
    timeout: 100_000,
  });
  say("ready");
  const things = new Map([["browser", browser]]);
  for await (const line of createInterface({ input: process.stdin })) void obey(things, JSON.parse(line));
  await browser.close();
  server.closeAllConnections();
  server.close();
});
process.exit(0);
