/** Owns the end of a database client: it closes promptly whatever is under way, and really. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { createDatabase } from '../../src/store/postgres/client.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually, within } from '../harness/eventually.ts';

const SLEEP = { name: 'sleep', text: 'SELECT pg_sleep(60)' };
const SESSIONS =
  "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'tributary-closing%' AND datname = current_database()";

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.drop());

function open(connectionsMax: number) {
  return createDatabase({
    url: database.url,
    pool: 'closing',
    connectionsMax,
    acquireTimeoutMs: 20_000,
    statementTimeoutMs: 60_000,
    lockTimeoutMs: 60_000,
    waitersMax: 100,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
}

it('closes at once while statements are being cancelled: more than can be cancelled at a time', async () => {
  const client = open(8);
  const left = new AbortController();
  const queries = Array.from({ length: 8 }, () => client.query(left.signal, SLEEP, []));
  const settled = Promise.allSettled(queries);
  await eventually(async () => expect(await database.sql(`${SESSIONS} AND query LIKE '%pg_sleep%'`)).toHaveLength(8));
  left.abort(new Error('left'));
  await within(client.close(), 20_000);
  expect((await settled).every(({ status }) => status === 'rejected')).toBe(true);
});

it('has ended its sessions when it says so', async () => {
  const client = open(4);
  await Promise.all(
    Array.from({ length: 4 }, () => client.query(AbortSignal.timeout(5_000), { name: 'one', text: 'SELECT 1' }, [])),
  );
  await client.close();
  // The socket is closed; the server notices within moments.
  await eventually(async () => expect(await database.sql(SESSIONS)).toEqual([]));
});
