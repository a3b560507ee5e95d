/** Build the extension of JupyterLab: TypeScript to lib/, then the prebuilt files. */

import { execFile } from "node:child_process";
import { copyFile, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { build } from "esbuild";
import { styleSheet, TARGET } from "../build.mjs";

const HERE = dirname(fileURLToPath(import.meta.url));
const ROOT = join(HERE, "..", "..");
const LIB = join(HERE, "lib");
const OUT = join(ROOT, "build", "labextension"); // as package.json says
const require = createRequire(import.meta.url);

/** One module of our own code; JupyterLab has the rest, and uPlot's licence comes with uPlot. */
async function library() {
  await build({
    entryPoints: [join(HERE, "src", "index.ts")],
    outfile: join(LIB, "index.js"),
    bundle: true,
    external: ["@jupyterlab/*", "@lumino/*", "uplot"],
    format: "esm",
    target: TARGET,
  });
  await writeFile(join(LIB, "panel.css"), await styleSheet());
}

/** JupyterLab's list of shared packages, but that those used here may be as old as is promised. */
async function sharedPackages() {
  const core = require("@jupyterlab/core-meta/core.package.json");
  const { dependencies } = require("./package.json");
  const path = join(LIB, "core.package.json");
  const resolutions = { ...core.resolutions, ...dependencies };
  await writeFile(path, JSON.stringify({ ...core, resolutions }));
  return path;
}

/** What JupyterLab loads. */
async function prebuilt() {
  const builder = join(dirname(require.resolve("@jupyter/builder")), "build-labextension.js");
  const core = await sharedPackages();
  const command = [builder, "--core-package-file", core, HERE];
  await promisify(execFile)(process.execPath, command, { cwd: HERE }).catch((error) => {
    throw new Error(`the extension could not be built:\n${error.stdout}${error.stderr}`);
  });
  await copyFile(join(HERE, "install.json"), join(OUT, "install.json"));
}

/** The version stands in one place, with the Python package. */
async function stamp() {
  const text = await readFile(join(ROOT, "nbpipe", "version.py"), "utf8");
  const [, version] = /__version__ = "([^"]+)"/.exec(text) ?? [];
  const path = join(OUT, "package.json");
  const data = { ...JSON.parse(await readFile(path, "utf8")), version };
  await writeFile(path, `${JSON.stringify(data, null, 2)}\n`);
}

await library();
await prebuilt();
await stamp();
