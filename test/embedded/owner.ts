// Owns servers on behalf of a test, in a process of its own that the test can kill. Says which processes it started, and
// then keeps them until it is told to stop or is killed.

import { startServers } from '../../src/embedded/servers.ts';

export interface OwnerReport {
  readonly pids: readonly number[];
}

const [dataDir = ''] = process.argv.slice(2);
const servers = await startServers({ dataDir, fast: true });
const report: OwnerReport = { pids: [servers.postgres.pid, servers.cache.pid, servers.queue.pid] };
process.on('message', () => {
  void servers.stop().then(() => process.disconnect());
});
process.send?.(report);
