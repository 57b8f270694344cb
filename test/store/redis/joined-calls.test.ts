/** Owns that viewers who are asked for together get what each would get alone: of their own tenant, with their own right to store, whatever is damaged among them, and no later for those whose slot is on the move. */
import { afterAll, beforeAll, expect, inject, it } from 'vitest';
import { createPulledFacts, createRelationFacts } from '../../../src/store/redis/facts.ts';
import { createReadHomeEntries } from '../../../src/store/redis/home-entries.ts';
import { slotOf } from '../../../src/store/redis/keys.ts';
import { POST_ID_MAX, postIdFrom, type TenantId, type UserId } from '../../../src/timeline/ids.ts';
import { NO_RELATION } from '../../../src/timeline/post.ts';
import { type CacheUnderTest, newTenant, newToken, openCache, soon, user } from './cache-under-test.ts';

const FACTS = { lifeMs: 60_000, tokenLifeMs: 20_000, random: Math.random };
const TIMELINES = { cap: 800, lifeMs: 60_000, tokenLifeMs: 20_000 };
const NEWEST = { direction: 'older', position: POST_ID_MAX, count: 20 } as const;

let under: CacheUnderTest;
beforeAll(async () => {
  under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
});
afterAll(() => under.close());

interface KeysOfViewer {
  readonly home: string;
  readonly pulled: string;
  readonly relations: string;
}
const FOLLOWED = user('followed');
/** What may have become of the keys of one viewer, and of what the answer then need not know. */
const CASES: readonly (readonly [lost: string, damage: (keys: KeysOfViewer) => Promise<unknown>])[] = [
  ['nothing', async () => undefined],
  ['home', ({ home }) => under.raw.del(home)],
  ['pulled', ({ pulled }) => under.raw.del(pulled)],
  ['relations', ({ relations }) => under.raw.del(relations)],
  ['pulled', ({ pulled }) => under.raw.set(pulled, 'tanother', 'PX', 20_000)],
  ['pulled', ({ pulled }) => under.raw.set(pulled, 'v[0]\n1\nr\n0')],
  ['pulled', ({ pulled }) => under.raw.set(pulled, '\n\n\n')],
  ['home', ({ home }) => under.raw.zadd(home, -7, '7\n8')],
  ['home', ({ home }) => under.raw.zadd(home, 9e15, 'r\n0')],
  ['home', ({ home }) => under.raw.zadd(home, 'inf', 'r9:9')],
  ['home pulled', ({ home }) => under.raw.set(home, 'text', 'KEEPTTL')],
  ['home pulled', ({ pulled }) => under.raw.del(pulled).then(() => under.raw.rpush(pulled, 'x'))],
  ['relations', ({ relations }) => under.raw.hset(relations, FOLLOWED, 'v100\nv100')],
  ['relations', ({ relations }) => under.raw.hset(relations, FOLLOWED, 'v999')],
  ['relations', ({ relations }) => under.raw.set(relations, 'text')],
];
const VIEWERS = CASES.map((_, index) => user(`viewer-${index}`));
const keysOf = (tenant: TenantId, viewer: UserId): KeysOfViewer => ({
  home: under.keys.timeline(tenant, viewer),
  pulled: under.keys.pulledAuthors(tenant, viewer),
  relations: under.keys.relations(tenant, viewer),
});

/** Every viewer of two tenants, who have different entries under the same names. */
async function makeScene(): Promise<readonly { readonly tenant: TenantId; readonly viewer: UserId }[]> {
  const tenants = [newTenant(), newTenant()];
  const timelines = under.timelines({});
  const pulled = createPulledFacts(under.cache, under.keys, FACTS);
  const relations = createRelationFacts(under.cache, under.keys, FACTS);
  for (const [which, tenant] of tenants.entries()) {
    for (const [index, viewer] of VIEWERS.entries()) {
      const token = newToken();
      await timelines.begin(soon(), { tenant, viewer, token });
      const postIds = [1, 2, 3].map((number) => postIdFrom(10_000 * which + 100 * index + number));
      await timelines.addOlder(soon(), { tenant, viewer, token, postIds });
      await timelines.commit(soon(), { tenant, viewer, token, floor: 0 });
      await pulled.lookUp(soon(), tenant, [viewer], token);
      const authors = [{ author: user(`pulled-${which}-${index}`), epoch: 1 }];
      await pulled.fill(soon(), tenant, token, [[viewer, { authors, tooMany: false }]]);
      const scope = { tenant, viewer };
      await relations.lookUp(soon(), scope, [FOLLOWED], token);
      await relations.fill(soon(), scope, token, [
        [FOLLOWED, { ...NO_RELATION, follows: true, mutedUntilMs: 1_000 * which + index }],
      ]);
      await CASES[index]?.[1](keysOf(tenant, viewer));
    }
  }
  return tenants.flatMap((tenant) => VIEWERS.map((viewer) => ({ tenant, viewer })));
}

it('are answered as if each had been asked for alone, and left as that would leave them', async () => {
  const readHome = createReadHomeEntries(under.cache, under.keys, TIMELINES);
  const relations = createRelationFacts(under.cache, under.keys, FACTS);
  const tokens = new Map<string, string>();
  type Of = { readonly tenant: TenantId; readonly viewer: UserId };
  const read = async (of: Of) => {
    const token = newToken();
    tokens.set(`${of.tenant}:${of.viewer}`, token);
    const [home, between] = await Promise.all([
      readHome(soon(), { ...of, ...NEWEST, token }),
      relations.lookUp(soon(), of, [FOLLOWED, user('other')], token),
    ]);
    return { home, between: between.map((one) => (one.kind === 'error' ? { ...one, error: one.error.reason } : one)) };
  };
  /** What stands there afterwards, with the reader's own token told from others. */
  const left = async ({ tenant, viewer }: Of) => {
    const { home, pulled, relations: between } = keysOf(tenant, viewer);
    const own = tokens.get(`${tenant}:${viewer}`) as string;
    const naming = (text: string | null | undefined) => text?.replace(own, 'OWN').replace(/:\d+$/, '');
    return {
      home: await under.raw.exists(home),
      pulled: naming(await under.raw.get(pulled)),
      between: Object.entries(await under.raw.hgetall(between)).map(([field, value]) => [field, naming(value)]),
    };
  };
  const alone = [];
  for (const of of await makeScene()) alone.push({ read: await read(of), left: await left(of) });
  const scene = await makeScene();
  const answers = await Promise.all(scene.map(read));
  const together = [];
  for (const [index, of] of scene.entries()) together.push({ read: answers[index], left: await left(of) });
  expect(together).toEqual(alone);
  for (const [index, { read: got }] of together.entries()) {
    const [which, of] = [Math.floor(index / CASES.length), index % CASES.length];
    const lost = CASES[of]?.[0] ?? '';
    const ids = [3, 2, 1].map((number) => 10_000 * which + 100 * of + number);
    const pulled = { kind: 'hit', value: { authors: [{ author: `pulled-${which}-${of}` }] } };
    expect(got?.home).toMatchObject({
      page: lost.includes('home') ? { state: 'absent' } : { state: 'ready', ids },
      pulled: lost.includes('pulled') ? { kind: expect.stringMatching(/miss|loading/) } : pulled,
    });
    const between = { kind: 'hit', value: { mutedUntilMs: 1_000 * which + of } };
    expect(got?.between[0]).toMatchObject(
      lost === 'relations' ? { kind: expect.stringMatching(/miss|loading|error/) } : between,
    );
  }
});

it('get the page that each asked for, whatever others of the turn ask for', async () => {
  const readHome = createReadHomeEntries(under.cache, under.keys, TIMELINES);
  const whole = (await makeScene()).filter((_, index) => index % CASES.length === 0);
  const asked = whole.flatMap((of) =>
    ([1, 2, 20] as const).flatMap((count) => [
      { ...of, ...NEWEST, count },
      { ...of, ...NEWEST, direction: 'newer' as const, count },
      { ...of, direction: 'newer' as const, position: 0, count },
      { ...of, direction: 'newer' as const, position: 1, count },
      { ...of, direction: 'newer' as const, position: 10_001, count },
    ]),
  );
  const alone = [];
  for (const one of asked) alone.push(await readHome(soon(), one));
  expect(new Set(alone.map(({ page }) => JSON.stringify(page))).size).toBeGreaterThan(10);
  expect(await Promise.all(asked.map((one) => readHome(soon(), one)))).toEqual(alone);
});

it('of two slots of a cluster do not wait for one another', async () => {
  const [tenant, other] = [newTenant(), newTenant()];
  const viewer = user('viewer');
  const held = Promise.withResolvers<void>();
  const isHeld = (keys: readonly (readonly string[])[]) => keys.flat().some((key) => key.includes(other));
  expect(slotOf(under.keys.timeline(tenant, viewer))).not.toBe(slotOf(under.keys.timeline(other, viewer)));
  // As a cluster's client does: what is asked in one call of ours is answered when the last of its slots has been.
  const cache: typeof under.cache = {
    ...under.cache,
    slotOf,
    nodeOf: () => 'one node',
    async runEach(signal, script, keys, ...more) {
      const answers = await under.cache.runEach(signal, script, keys, ...more);
      if (isHeld([keys])) await held.promise;
      return answers;
    },
    async runEachSet(signal, script, keys, ...more) {
      const answers = await under.cache.runEachSet(signal, script, keys, ...more);
      if (isHeld(keys)) await held.promise;
      return answers;
    },
  };
  const readHome = createReadHomeEntries(cache, under.keys, TIMELINES);
  const relations = createRelationFacts(cache, under.keys, FACTS);
  const read = (of: TenantId) =>
    Promise.all([
      readHome(soon(), { tenant: of, viewer, ...NEWEST, token: newToken() }),
      relations.lookUp(soon(), { tenant: of, viewer }, [FOLLOWED], newToken()),
    ]);
  const late = read(other);
  const expected = [{ page: { state: 'absent' }, pulled: { kind: 'miss' } }, [{ kind: 'miss' }]];
  expect(await read(tenant)).toEqual(expected);
  held.resolve();
  expect(await late).toEqual(expected);
});
