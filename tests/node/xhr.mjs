// As much of a browser's XMLHttpRequest as a client needs that reads text while it comes. Node has none.

import http from "node:http";

import { say } from "./report.mjs";

export class XMLHttpRequest {
  status = 0;
  statusText = "";
  responseText = "";
  withCredentials = false;
  onprogress = null;
  onload = null;
  onerror = null;
  onabort = null;
  onloadend = null;

  #method = "GET";
  #url = "";
  #headers = {};
  #request = null;
  #over = false;

  open(method, url) {
    this.#method = method;
    this.#url = url;
  }

  setRequestHeader(name, value) {
    this.#headers[name.toLowerCase()] = value;
  }

  send(body) {
    say("request", { method: this.#method, url: this.#url, headers: this.#headers });
    // No agent: a browser opens a new connection after one that broke, and so do we after each.
    const options = { method: this.#method, headers: this.#headers, agent: false };
    this.#request = http.request(this.#url, options, (response) => this.#receive(response));
    this.#request.on("error", () => this.#end("onerror"));
    this.#request.end(body ?? undefined);
  }

  abort() {
    this.#end("onabort");
    this.#request?.destroy();
  }

  #receive(response) {
    this.status = response.statusCode;
    this.statusText = response.statusMessage;
    say("status", this.status);
    const decoder = new TextDecoder();
    response.on("data", (bytes) => {
      this.responseText += decoder.decode(bytes, { stream: true });
      this.onprogress?.();
    });
    response.on("end", () => this.#end("onload"));
    response.on("error", () => this.#end("onerror"));
  }

  // A request ends once, in one way, and then says that it has ended.
  #end(handler) {
    if (this.#over) return;
    this.#over = true;
    this[handler]?.();
    this.onloadend?.();
  }
}
