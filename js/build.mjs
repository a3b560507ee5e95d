/** Bundle the panel to one module and one style sheet; fail where the module is too large. */

import { mkdir, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const OUT = join(HERE, "..", "nbpipe", "jupyter", "static");
const LIMIT_BYTES = 150_000; // it is sent whole for each widget
export const TARGET = ["chrome117", "firefox120", "safari17.4"];

/** A file of uPlot's. */
function ofUplot(name) {
  const require = createRequire(join(HERE, "widgets", "package.json"));
  return readFile(require.resolve(`uplot/${name}`), "utf8");
}

/** The rules of each sheet, uPlot's among them, act inside the panel only. */
export async function styleSheet() {
  const css = (name) => readFile(join(HERE, "widgets", "css", name), "utf8");
  const foreign = await ofUplot("dist/uPlot.min.css");
  const names = Object.keys(JSON.parse(await css("sheets.json")));
  const own = await Promise.all(names.map((name) => css(`${name}.css`)));
  const sheet = [`.nbpipe-panel {${foreign}}`, ...own].join("\n");
  return (await transform(sheet, { loader: "css", minify: true, target: TARGET })).code;
}

async function script() {
  const result = await build({
    entryPoints: [join(HERE, "widgets", "src", "index.ts")],
    bundle: true,
    format: "esm",
    minify: true,
    target: TARGET,
    banner: { js: `/*! Contains uPlot.\n${await ofUplot("LICENSE")}*/` },
    write: false,
  });
  return result.outputFiles[0].contents;
}

export async function bundle(out = OUT) {
  const [module, style] = await Promise.all([script(), styleSheet()]);
  if (module.byteLength > LIMIT_BYTES) {
    throw new Error(`panel.js must be at most ${LIMIT_BYTES} bytes, got ${module.byteLength}`);
  }
  await mkdir(out, { recursive: true });
  await writeFile(join(out, "panel.js"), module);
  await writeFile(join(out, "panel.css"), style);
  return { "panel.js": module.byteLength, "panel.css": Buffer.byteLength(style) };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  for (const [name, size] of Object.entries(await bundle())) {
    console.log(`${name}  ${(size / 1000).toFixed(1)} kB`);
  }
}
