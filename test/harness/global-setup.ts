// Owns the servers of a test run: started once before the first test file, ended and removed after the last.
// Invariant: a run that was killed costs the next one nothing; its servers and data are removed first.
//
// A test file gets the addresses with `inject('servers')`. Databases, key prefixes and clean-up are its own affair; a test
// that stops or kills a server starts one of its own.

import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import type { TestProject } from 'vitest/node';
import { isRunning } from '../../src/embedded/processes.ts';
import { removeServers, startServers } from '../../src/embedded/servers.ts';

declare module 'vitest' {
  export interface ProvidedContext {
    readonly servers: { readonly postgresUrl: string; readonly cacheUrl: string; readonly queueUrl: string };
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const home = path.join(project.config.root, '.data');
  await removeDeadRuns(home);
  const dataDir = path.join(home, `test-${process.pid}`);
  const servers = await startServers({ dataDir, fast: true });
  project.provide('servers', {
    postgresUrl: servers.postgres.url,
    cacheUrl: servers.cache.url,
    queueUrl: servers.queue.url,
  });
  return async () => {
    await servers.stop();
    await removeServers(dataDir);
  };
}

/** A folder of a process that runs is left alone, even where it is not locked: that run may be about to lock it. */
async function removeDeadRuns(home: string): Promise<void> {
  if (!existsSync(home)) return;
  for (const name of readdirSync(home)) {
    const pid = Number(/^test-(\d+)(?:-|$)/.exec(name)?.[1]);
    if (Number.isInteger(pid) && !isRunning(pid)) await removeServers(path.join(home, name));
  }
}
