// A warm runner for Node: calls JavaScript functions for a Headway agent. The protocol is docs/runner-protocol.md.
//
// A function is "/folder/file.js:name" (also .mjs, .cjs, and names with dots) or "package:name", found as `require` finds it.
// A file that changed is loaded again. What the function prints goes to standard error's and output's place in its task.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { statSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { writeSync } from "node:fs";
import path from "node:path";

const require = createRequire(path.join(process.cwd(), "runner"));
const loaded = new Map(); // where -> { signature, module }
let version = 0;
let current = "0";

function answer(...words) {
  const line = Buffer.from(words.join("\t") + "\n");
  for (let at = 0; at < line.length; ) {
    try {
      at += writeSync(1, line, at);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
    }
  }
}

// A function's own printing must not look like an answer: it is sent as text of its task.
process.stdout.write = (text) => {
  answer("say", current, JSON.stringify(String(text)));
  return true;
};

class Missing extends Error {}

async function load(where) {
  const isFile = path.isAbsolute(where);
  let signature = "";
  if (isFile) {
    let found;
    try {
      found = statSync(where);
    } catch {
      throw new Missing(`there is no file ${where} on this node`);
    }
    signature = `${found.mtimeMs}/${found.size}`;
  }
  const known = loaded.get(where);
  if (known && known.signature === signature) return known.module;
  let module;
  try {
    module = isFile ? await import(`${pathToFileURL(where).href}?v=${++version}`) : require(where);
  } catch (error) {
    throw new Missing(`loading ${where} failed: ${error.message}`);
  }
  loaded.set(where, { signature, module });
  return module;
}

async function find(name) {
  const at = name.lastIndexOf(":");
  const module = await load(name.slice(0, at));
  const names = name.slice(at + 1).split(".");
  for (const root of [module, module.default]) {
    const found = names.reduce((value, part) => value?.[part], root);
    if (typeof found === "function") return found;
  }
  throw new Missing(`${name.slice(0, at)} has no function ${name.slice(at + 1)}`);
}

globalThis.headway = {
  task: () => current,
  progress: (done, total = 1, text = "") => answer("progress", current, done, total, JSON.stringify(String(text))),
};

async function run(id, attempt, deadline, name, input) {
  current = id;
  Object.assign(globalThis.headway, { attempt: Number(attempt), deadline: Number(deadline) });
  try {
    const call = await find(name);
    const value = JSON.parse(input);
    let result = Array.isArray(value) ? call(...value) : value === null ? call() : call(value);
    if (result instanceof Promise) result = await result;
    const encoded = JSON.stringify(result === undefined ? null : result);
    if (encoded === undefined) throw new TypeError("the result cannot be stored as JSON");
    answer("ok", id, encoded);
  } catch (error) {
    if (error instanceof Missing) answer("missing", id, JSON.stringify(error.message));
    else {
      const known = error instanceof Error;
      const type = known ? error.name : "Error";
      answer("fail", id, type, JSON.stringify(String(known ? error.message : error)), JSON.stringify(String((known && error.stack) || "")));
    }
  }
}

answer("ready", "1", `node ${process.version}`);
for await (const line of createInterface({ input: process.stdin, terminal: false })) {
  const [word, id, attempt, deadline, name, ...input] = line.split("\t");
  if (word === "run") await run(id, attempt, deadline, name, input.join("\t"));
}
process.exit(0);
