// An EventSource as in a browser, until it stops by itself. Asked: {url}

import { EventSource } from "eventsource";

import { asked, ending, say, toldFetch } from "./report.mjs";

await ending(
  () =>
    new Promise((resolve) => {
      const source = new EventSource(asked.url, { fetch: toldFetch });
      source.onmessage = (event) => say("chunk", { ...JSON.parse(event.data), lastEventId: event.lastEventId });
      source.onerror = (event) => {
        say("error", { code: event.code ?? null, readyState: source.readyState });
        if (source.readyState === EventSource.CLOSED) resolve({ code: event.code ?? null });
      };
    }),
);
