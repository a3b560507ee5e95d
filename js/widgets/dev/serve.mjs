/** Serve the panel with a simulated kernel: http://127.0.0.1:8787/?stages=6&state=running */

import { copyFile, mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { context } from "esbuild";
import { bundle } from "../../build.mjs";

const HERE = dirname(fileURLToPath(import.meta.url));
const out = await mkdtemp(join(tmpdir(), "nbpipe-dev-"));
await bundle(out);
await copyFile(join(HERE, "index.html"), join(out, "index.html"));
const page = await context({
  entryPoints: { dev: join(HERE, "dev.ts") },
  bundle: true,
  format: "esm",
  outdir: out,
});
const { port } = await page.serve({
  servedir: out,
  host: "127.0.0.1",
  port: Number(process.argv[2] ?? 8787),
});
console.log(`http://127.0.0.1:${port}/?stages=6&state=running&theme=light`);
