// What a script tells the test: one JSON object a line on stdout. What it is asked: one JSON object as argument.

export const asked = JSON.parse(process.argv[2] ?? "{}");

export function say(kind, value) {
  process.stdout.write(JSON.stringify({ kind, value: value ?? null }) + "\n");
}

export function brief(error) {
  return error == null ? null : { name: error.name, message: error.message };
}

// Run `work`, and say how it ended: its value, or its error.
export async function ending(work) {
  try {
    say("end", { value: (await work()) ?? null, error: null });
  } catch (error) {
    say("end", { value: null, error: brief(error) });
  }
}

// A fetch that says what is asked of the server, and what the server answers.
export async function toldFetch(url, init = {}) {
  const headers = Object.fromEntries(new Headers(init.headers));
  const request = { method: init.method ?? "GET", url: String(url), headers };
  say("request", request);
  const response = await fetch(url, init);
  say("status", response.status);
  return response;
}
