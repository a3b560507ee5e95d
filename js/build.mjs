/** Bundle each widget to one module and one style sheet; fail where a module is too large. */

import { mkdir, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const OUT = join(HERE, "..", "nbpipe", "jupyter", "static");
const LIMIT_BYTES = 150_000; // a kernel sends it once
const STUB_BYTES = 1_000; // each widget has it
export const TARGET = ["chrome117", "firefox120", "safari17.4"];

/** A file of uPlot's. */
function ofUplot(name) {
  const require = createRequire(join(HERE, "widgets", "package.json"));
  return readFile(require.resolve(`uplot/${name}`), "utf8");
}

/** The rules of each sheet, uPlot's among them, act inside a panel only. */
export async function styleSheet() {
  const names = JSON.parse(await readFile(join(HERE, "widgets", "css", "sheets.json"), "utf8"));
  const foreign = await ofUplot("dist/uPlot.min.css");
  return minified(`.nbpipe-panel {${foreign}}`, ...(await sheets(...Object.keys(names))));
}

function sheets(...names) {
  const read = (name) => readFile(join(HERE, "widgets", "css", `${name}.css`), "utf8");
  return Promise.all(names.map(read));
}

async function minified(...sheets) {
  const options = { loader: "css", minify: true, target: TARGET };
  return (await transform(sheets.join("\n"), options)).code;
}

async function script(entry, banner = "") {
  const result = await build({
    entryPoints: [join(HERE, "widgets", "src", entry)],
    bundle: true,
    format: "esm",
    minify: true,
    target: TARGET,
    banner: { js: banner },
    write: false,
  });
  return result.outputFiles[0].contents;
}

export async function bundle(out = OUT) {
  const licence = `/*! Contains uPlot.\n${await ofUplot("LICENSE")}*/`;
  const files = {
    "panel.js": await script("index.ts", licence),
    "panel.css": await styleSheet(),
    "pipeline.js": await script("pipeline.ts"),
    "pipeline.css": await minified(...(await sheets("panel", "export", "starter"))),
    "stub.js": await script("stub.ts"),
  };
  await mkdir(out, { recursive: true });
  const sizes = {};
  for (const [name, content] of Object.entries(files)) {
    sizes[name] = Buffer.byteLength(content);
    const most = name === "stub.js" ? STUB_BYTES : LIMIT_BYTES;
    if (sizes[name] > most) {
      throw new Error(`${name} must be at most ${most} bytes, got ${sizes[name]}`);
    }
    await writeFile(join(out, name), content);
  }
  return sizes;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  for (const [name, size] of Object.entries(await bundle())) {
    console.log(`${name}  ${(size / 1000).toFixed(1)} kB`);
  }
}
