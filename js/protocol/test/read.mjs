/**
 * Reads messages with the front end's own readers, for the tests in Python: one JSON value a line,
 * [name of the reader, message], answered by a line with what was read, or with {"error": "..."}.
 */

import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const { outputFiles } = await build({
  entryPoints: [fileURLToPath(new URL("../src/index.ts", import.meta.url))],
  bundle: true,
  format: "esm",
  write: false,
});
const code = Buffer.from(outputFiles[0].contents).toString("base64");
const readers = await import(`data:text/javascript;base64,${code}`);

/** A map as the object that it was read from. */
function asObject(_, value) {
  return value instanceof Map ? Object.fromEntries(value) : value;
}

function answer([reader, message]) {
  try {
    return readers[reader](message);
  } catch (error) {
    return { error: String(error) };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(answer(JSON.parse(line)), asObject)}\n`);
}
