import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    environment: "happy-dom",
    include: ["*/test/**/*.test.{ts,mjs}"],
    // As of the tests in Python: what takes longer hangs, also on a machine with other work.
    testTimeout: 40_000,
    hookTimeout: 40_000,
    restoreMocks: true,
    unstubGlobals: true,
  },
});
