/** Owns what a long outage of a dependency costs while calls keep coming: each is answered in time, nothing piles up, and all is well right after it. */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterEach, expect, it } from 'vitest';
import { refusalFrom } from '../harness/clients.ts';
import { eventually, within } from '../harness/eventually.ts';
import { storeFollowers } from '../harness/rows.ts';
import { completenessOf, idsOf, type OutageStage, openOutageStage } from './outage-stage.ts';

let stage: OutageStage;
afterEach(() => stage.close());

const VIEWERS = Array.from({ length: 100 }, (_, at) => `viewer-${at}`);
const DEADLINE_MS = 1_000;
/** Far beyond the deadline: for calls that would never be answered. */
const ANSWERED_WITHIN_MS = 10_000;
/** Of a machine that others keep busy. */
const PATIENT = { timeoutMs: 15_000 };

async function open(env: Readonly<Record<string, string>> = {}): Promise<void> {
  stage = await openOutageStage({
    TRIBUTARY_ROLE: 'api',
    READ_DEADLINE_DEFAULT_MS: String(DEADLINE_MS),
    WRITE_DEADLINE_DEFAULT_MS: String(DEADLINE_MS),
    DATABASE_ACQUIRE_TIMEOUT_MS: '300',
    ...env,
  });
  await storeFollowers(stage.database, stage.tenant.id, { followee: 'ada', followers: VIEWERS });
  for (let at = 0; at < 5; at += 1) await publish();
  await eventually(async () => {
    for (const viewer of VIEWERS.slice(0, 10)) expect(completenessOf(await stage.home(viewer))).toBe('COMPLETE');
  });
}

const publish = () => stage.tenant.posts.publishPost({ authorId: 'ada', text: 'hi' });

interface Load {
  /** How calls ended: completeness of pages, codes of refusals, `published`. */
  readonly ends: ReadonlySet<string>;
  readonly calls: number;
}

/** Calls at a fixed rate, whether or not earlier ones are answered, one in ten a publish, until told to end; rejects where one is not answered long after its deadline. */
async function offer(until: () => boolean, together = 3): Promise<Load> {
  const ends = new Set<string>();
  const calls: Promise<unknown>[] = [];
  while (!until()) {
    for (let at = 0; at < together; at += 1) {
      const call = calls.length % 10 === 0 ? publish().then(() => 'published') : read(VIEWERS[calls.length % 10] ?? '');
      calls.push(
        within(call, ANSWERED_WITHIN_MS).then(
          (end) => ends.add(end),
          (fault) => ends.add(refusalFrom(fault).code),
        ),
      );
    }
    await pause(20);
  }
  await Promise.all(calls);
  return { ends, calls: calls.length };
}

const read = async (viewer: string): Promise<string> => completenessOf(await stage.home(viewer)) ?? '';
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;
/** Bytes that the process holds on to. */
function held(): number {
  collect();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

it.each([
  { dependency: 'redis', fault: 'refuse' },
  { dependency: 'redis', fault: 'blackhole' },
  { dependency: 'postgres', fault: 'refuse' },
  { dependency: 'postgres', fault: 'blackhole' },
] as const)(
  '$dependency, $fault: every call is answered, nothing is tried in vain and nothing piles up; right and whole again by itself after its end',
  async ({ dependency, fault }) => {
    await open();
    const proxy = stage[dependency];
    const breaker = `tributary_breaker_state{dependency="${dependency === 'redis' ? 'cache' : 'database'}"}`;
    let isOpen = false;
    let over = false;
    const noticing = offer(() => isOpen);
    await proxy[fault]();
    await eventually(async () => expect(await stage.scraped(breaker)).toBeGreaterThan(0), { timeoutMs: 10_000 });
    isOpen = true;
    expectRefusals((await noticing).ends);

    const before = held();
    const { connectionsTaken, bytesUp } = proxy;
    const known = offer(() => over);
    await pause(1_500);
    expect(held() - before).toBeLessThan(50 * 1_024 * 1_024);
    // Signs of life alone, a few a second, over a connection or two each.
    expect(proxy.connectionsTaken - connectionsTaken).toBeLessThan(40);
    expect(proxy.bytesUp - bytesUp).toBeLessThan(50_000);
    over = true;
    const { ends, calls } = await known;
    expect(calls).toBeGreaterThan(50);
    expectRefusals(ends);
    expect(ends).toContain(dependency === 'redis' ? 'PARTIAL' : 'REDUCED');

    await proxy.restore();
    // Nobody fans out here: whoever has no timeline yet gets one that is whole.
    const page = await eventually(
      async () => {
        const whole = await stage.home('viewer-99');
        expect(completenessOf(whole)).toBe('COMPLETE');
        return whole;
      },
      { timeoutMs: 10_000 },
    );
    expect(idsOf(page)).toEqual((await stage.tenant.oracle('viewer-99')).home.slice(0, 50));
    await publish();
    await eventually(async () => expect(await stage.scraped('tributary_rpc_in_flight_calls')).toBe(0));
  },
);

it('both restarted three times under load, then forgotten by the network: every call is answered, and callers see full pages again without a restart of ours', {
  timeout: 90_000,
}, async () => {
  await open();
  const both = [stage.redis, stage.postgres];
  let over = false;
  const load = offer(() => over, 1);
  for (let restart = 0; restart < 3; restart += 1) {
    await Promise.all(both.map((proxy) => proxy.refuse()));
    await pause(200);
    await Promise.all(both.map((proxy) => proxy.restore()));
    await eventually(async () => expect(await read('viewer-1')).toBe('COMPLETE'), PATIENT);
  }
  for (const proxy of both) proxy.forget();
  await eventually(async () => expect(await read('viewer-1')).toBe('COMPLETE'), PATIENT);
  over = true;
  const { ends } = await load;
  expectRefusals(ends);
  expect(ends).toContain('COMPLETE');
  // Every connection of the pool is a new one.
  await eventually(() => Promise.all(Array.from({ length: 10 }, publish)), PATIENT);
});

/** All but pages and posts is an honest refusal. */
function expectRefusals(ends: ReadonlySet<string>): void {
  const honest = ['COMPLETE', 'REDUCED', 'STALE', 'PARTIAL', 'UNAVAILABLE', 'DEADLINE_EXCEEDED', 'published'];
  expect(honest).toEqual(expect.arrayContaining([...ends]));
}
