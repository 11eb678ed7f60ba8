// A TanStack AI ChatClient, told what to do by lines on stdin: {send: text}, {stop: true}, {exit: true}.
// Asked: {url, threadId, persistence?, props?}

import { createInterface } from "node:readline";

import { ChatClient, fetchServerSentEvents } from "@tanstack/ai-client";

import { asked, brief, ending, say, toldFetch } from "./report.mjs";

const client = new ChatClient({
  connection: fetchServerSentEvents(asked.url, { fetchClient: toldFetch }),
  threadId: asked.threadId,
  persistence: asked.persistence,
  forwardedProps: asked.props ?? {},
  onMessagesChange: (messages) => say("messages", messages),
  onStatusChange: (status) => say("status-change", status),
  onError: (error) => say("error", brief(error)),
  onFinish: (message) => say("finish", message),
  onRunIdChange: (runId) => say("run", runId),
});

client.attach(); // as a framework's hook does when its view appears

const orders = {
  send: (text) => client.sendMessage(text).then(() => say("sent", brief(client.getError()))),
  stop: () => client.stop(),
};

await ending(async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    const [order, value] = Object.entries(JSON.parse(line))[0];
    if (order === "exit") break;
    void orders[order](value);
  }
  const state = { status: client.getStatus(), loading: client.getIsLoading(), messages: client.getMessages() };
  client.dispose();
  return state;
});
process.exit(0);
