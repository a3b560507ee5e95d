// @vitest-environment node
import { readdirSync, readFileSync } from "node:fs";
import { transform } from "esbuild";
import { describe, expect, test } from "vitest";

const FOLDER = new URL("../css/", import.meta.url);
const PREFIX = "nbp-";

/** Outermost classes of each sheet's part, without the prefix; the frame's are for all parts. */
const ROOTS = JSON.parse(readFileSync(new URL("sheets.json", FOLDER), "utf8"));

/** Selectors of a sheet as they are without nesting. */
async function selectorsOf(sheet) {
  const text = readFileSync(new URL(`${sheet}.css`, FOLDER), "utf8");
  const flat = (await transform(text, { loader: "css", target: "chrome110" })).code;
  const preludes = [...flat.matchAll(/([^{};]+)\{/g)].map(([, found = ""]) => found.trim());
  return preludes
    .filter((prelude) => !/^(@|from$|to$)/.test(prelude))
    .flatMap((prelude) => prelude.split(/,(?![^(]*\))/))
    .map((selector) => selector.trim());
}

function classesOf(text) {
  return [...text.matchAll(/\.([\w-]+)/g)].map(([, name = ""]) => name);
}

/** The classes that stand first in a part of a selector: `a` and `c` of `.a.b > .c`. */
function openersOf(selector) {
  return selector
    .replace(/\([^)]*\)|\[[^\]]*\]/g, "")
    .split(/[\s>+~]+/)
    .flatMap((compound) => classesOf(compound).slice(0, 1));
}

const sheets = new Map();
for (const name of Object.keys(ROOTS)) {
  sheets.set(name, await selectorsOf(name));
}
const parts = [...sheets].filter(([name]) => name !== "panel");

const namesOf = (sheet) => (ROOTS[sheet] ?? []).map((root) => PREFIX + root);
const shared = new Set(["nbpipe-panel", ...namesOf("panel")]);

describe("the style of a part", () => {
  test("is named in the list that the bundle is made of", () => {
    const files = readdirSync(FOLDER).filter((name) => name.endsWith(".css"));
    expect(files.sort()).toEqual(
      Object.keys(ROOTS)
        .map((name) => `${name}.css`)
        .sort(),
    );
  });

  test("of the frame alone is for every part, and is listed", () => {
    const openers = (sheets.get("panel") ?? []).flatMap(openersOf);
    expect([...new Set(openers)].sort()).toEqual([...shared].sort());
  });

  test.each(parts)("begins with a class of its own: %s", (name, selectors) => {
    const roots = namesOf(name);
    const strangers = selectors.filter((selector) => {
      const [panel, first = ""] = openersOf(selector);
      return panel !== "nbpipe-panel" || !roots.includes(first);
    });
    expect(strangers).toEqual([]);
  });

  test.each(parts)("styles no class that another part uses, too: %s", (name, selectors) => {
    const others = parts.filter(([other]) => other !== name);
    const used = new Set(others.flatMap(([, theirs]) => theirs.flatMap(classesOf)));
    const openers = new Set(selectors.flatMap(openersOf));
    const reaching = [...openers].filter((one) => used.has(one) && !shared.has(one));
    expect(reaching).toEqual([]);
  });
});
