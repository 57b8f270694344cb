// Owns how the tests run: on real servers that are started once per run (harness/global-setup.ts), one process per file.

import path from 'node:path';
import { defineConfig } from 'vitest/config';

export default defineConfig({
  root: path.resolve(import.meta.dirname, '..'),
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/harness/global-setup.ts'],
    pool: 'forks',
    // Each worker shares two cores with three servers; more workers only make single tests slower.
    maxWorkers: 2,
    // Bounds of what hangs, not of what is slow: nothing here asks how fast the machine is.
    testTimeout: 60_000,
    hookTimeout: 120_000,
    // Three servers end within 20 s each, in parallel, in the worst case.
    teardownTimeout: 30_000,
  },
});
