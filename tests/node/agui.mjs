// One run by AG-UI's own HttpAgent, which verifies the order of all events. Asked: {url, runId, threadId, text, props?}

import { HttpAgent } from "@ag-ui/client";

import { asked, brief, ending, say, toldFetch } from "./report.mjs";

const agent = new HttpAgent({
  url: asked.url,
  threadId: asked.threadId,
  initialMessages: [{ id: "m-1", role: "user", content: asked.text }],
  fetch: toldFetch,
});

await ending(async () => {
  await agent.runAgent(
    { runId: asked.runId, forwardedProps: asked.props ?? {} },
    { onEvent: ({ event }) => say("chunk", event), onRunFailed: ({ error }) => say("failed", brief(error)) },
  );
  return { messages: agent.messages };
});
