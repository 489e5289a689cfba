// Requests to this port: two at a time, so that the console never takes more of it than that.

const AT_ONCE = 2;
const PATIENCE_MS = 30000;
const TOKEN = "bindery.admin.token";
let running = 0;
const waiting = [];

export class Problem extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
  /** This part is not in this process, or not in this version. */
  get isAbsent() { return this.status === 404 || this.status === 501; }
  get needsToken() { return this.status === 401 || this.status === 403; }
}

async function turn() {
  if (running >= AT_ONCE) await new Promise((resolve) => waiting.push(resolve));
  else running += 1;
}

function done() {
  const next = waiting.shift();
  if (next) next();
  else running -= 1;
}

/** Asks a path below this page, with the token only if the path is private. Returns JSON where it is that, text otherwise, and the head of the answer. */
export async function ask(path, isPrivate = false) {
  await turn();
  try {
    const token = isPrivate ? sessionStorage.getItem(TOKEN) : null;
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const signal = AbortSignal.timeout(PATIENCE_MS);
    const answer = await fetch(path, { headers, signal, cache: "no-store" });
    const text = await answer.text();
    if (!answer.ok) throw new Problem(answer.status, text.trim() || `${answer.status} ${answer.statusText}`);
    const isJson = (answer.headers.get("content-type") ?? "").includes("json");
    return { body: isJson ? JSON.parse(text) : text, headers: answer.headers };
  } catch (error) {
    if (error instanceof Problem) throw error;
    throw new Problem(0, error.name === "TimeoutError" ? `no answer within ${PATIENCE_MS / 1000} s` : "the node does not answer");
  } finally {
    done();
  }
}

export const get = async (path) => (await ask(path)).body;

export const getPrivate = async (path) => (await ask(path, true)).body;

/** The body, or the problem; never throws. */
export async function attempt(path) {
  try { return { body: await get(path) }; } catch (problem) { return { problem }; }
}

/** Asks the person for a token, which this tab keeps until it is closed. True when there is a new one. */
export function askForToken(why) {
  const dialog = document.getElementById("token-dialog");
  const [form, input] = [document.getElementById("token-form"), document.getElementById("token")];
  document.getElementById("token-why").textContent = why;
  const isOpen = location.protocol === "http:" && !/^(localhost|127(\.\d+){3}|\[::1\])$/.test(location.hostname);
  document.getElementById("token-warning").textContent = isOpen
    ? "This connection is not encrypted: others on the network can read the token. It is kept in this tab alone."
    : "It is kept in this tab alone, until the tab is closed.";
  input.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const end = (isGiven) => {
      form.onsubmit = null;
      dialog.onclose = null;
      if (dialog.open) dialog.close();
      input.value = "";
      resolve(isGiven);
    };
    form.onsubmit = (event) => {
      event.preventDefault();
      if (input.value) sessionStorage.setItem(TOKEN, input.value);
      end(input.value !== "");
    };
    document.getElementById("token-cancel").onclick = () => end(false);
    dialog.onclose = () => end(false);
  });
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;
export const forgetToken = () => sessionStorage.removeItem(TOKEN);
