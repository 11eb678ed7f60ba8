// One call of a TanStack AI connection adapter. Asked: {adapter, url, call, runId?, threadId?, text?, props?, reconnect?}

import { fetchHttpStream, fetchServerSentEvents, xhrHttpStream, xhrServerSentEvents } from "@tanstack/ai-client";

import { asked, ending, say, toldFetch } from "./report.mjs";
import { XMLHttpRequest } from "./xhr.mjs";

const adapters = { fetchServerSentEvents, fetchHttpStream, xhrServerSentEvents, xhrHttpStream };

const adapter = adapters[asked.adapter](asked.url, {
  fetchClient: toldFetch,
  xhrFactory: () => new XMLHttpRequest(),
  reconnect: asked.reconnect,
});

const calls = {
  connect: () => {
    const messages = [{ id: "m-1", role: "user", parts: [{ type: "text", content: asked.text }] }];
    const context = { threadId: asked.threadId, runId: asked.runId, forwardedProps: asked.props ?? {} };
    return adapter.connect(messages, undefined, undefined, context);
  },
  joinRun: () => adapter.joinRun(asked.runId),
  hydrate: () => adapter.hydrate(asked.threadId),
};

await ending(async () => {
  const called = calls[asked.call]();
  if (asked.call === "hydrate") return called;
  for await (const chunk of called) say("chunk", chunk);
});
