// A page of React with TanStack AI's useChat in a DOM without a browser (happy-dom), told what to do as chat.mjs is.
// Asked: {url, threadId, persistence?, props?}. What it says as `shown` is what stands in the document.

import { createInterface } from "node:readline";

import { Window } from "happy-dom";

import { asked, brief, ending, say, toldFetch } from "./report.mjs";

const window = new Window({ url: asked.url });
for (const name of ["window", "document", "navigator"]) {
  const value = name === "window" ? window : window[name];
  Object.defineProperty(globalThis, name, { value, configurable: true });
}
process.env.NODE_ENV = "production";
const { createElement, useEffect } = await import("react");
const { createRoot } = await import("react-dom/client");
const { fetchServerSentEvents, useChat } = await import("@tanstack/ai-react");

const connection = fetchServerSentEvents(asked.url, { fetchClient: toldFetch });
let chat;

function Page() {
  chat = useChat({
    connection,
    threadId: asked.threadId,
    persistence: asked.persistence,
    forwardedProps: asked.props ?? {},
    onError: (error) => say("error", brief(error)),
    onFinish: (message) => say("finish", message),
  });
  useEffect(() => {
    say("messages", chat.messages);
    say("shown", [...document.querySelectorAll("li")].map((item) => item.textContent));
  }, [chat.messages]);
  useEffect(() => say("status-change", chat.status), [chat.status]);
  const text = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.content);
  return createElement(
    "ul",
    null,
    chat.messages.map((message) => createElement("li", { key: message.id }, text(message).join(""))),
  );
}

const place = document.createElement("div");
document.body.append(place);
const root = createRoot(place);
root.render(createElement(Page));

const orders = {
  send: (text) => chat.sendMessage(text).then(() => say("sent", brief(chat.error))),
  stop: () => chat.stop(),
};

await ending(async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    const [order, value] = Object.entries(JSON.parse(line))[0];
    if (order === "exit") break;
    void orders[order](value);
  }
  const state = { status: chat.status, loading: chat.isLoading, messages: chat.messages };
  root.unmount();
  return state;
});
process.exit(0);
