/** Owns what a damaged key of any kind does: nothing that is shown is wrong, what hides is confirmed, and the damage is gone afterwards. */
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, expect, inject, it } from 'vitest';
import { type Cached, openCached } from '../harness/cached.ts';
import { eventually } from '../harness/eventually.ts';
import type { Cast } from '../harness/play.ts';
import { storeClass } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';

let service: TestService;
let redis: Redis;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  // What Redis holds is damaged behind the service's back: copies of the process would hide that.
  service = await startTestService({
    env: { PROCESS_BODY_BYTES: '0', PROCESS_PROFILE_BYTES: '0', PROCESS_LIST_MS: '0' },
  });
  redis = new Redis(inject('servers').cacheUrl);
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
  await cast.play(
    'rita follows ada, ben, cyd, pam; ada posts 20 times as a; ben posts 3 times as b; cyd posts 2 times as c; pam posts 3 times as p; ben reposts c1; rita mutes cyd',
  );
  for (const author of ['ada', 'ben', 'cyd', 'pam'])
    await tenant.graph.putAuthor({ authorId: author, displayName: author });
  await storeClass(service.database, tenant.id, { authors: ['pam'], fanoutClass: 'pull' });
  await service.settle();
});
afterAll(async () => {
  cached.close();
  redis.disconnect();
  await service.stop();
});
const KINDS = ['tl', 'al', 'pull', 'rel', 'pm', 'am', 'pb', 'ap', 'pc'];
let keys: readonly string[];
beforeEach(() =>
  eventually(async () => {
    await wholeHome(tenant, 'rita');
    keys = await Promise.all(KINDS.map(keyOf));
  }),
);
// What one test damages is no other's.
afterEach(() => cached.evictAll());

const put = async (key: string, write: () => Promise<unknown>): Promise<void> => {
  await redis.del(key);
  await write();
};
/** Values that nobody of ours has written. */
const DAMAGES: Readonly<Record<string, (key: string) => Promise<unknown>>> = {
  'text of no form': (key) => redis.set(key, 'garbage'),
  'nothing at all': (key) => redis.set(key, ''),
  'a token that never ends': (key) => redis.set(key, 'tx'),
  'a value of no fields': (key) => redis.set(key, 'v[]'),
  'a value that is too deep': (key) => redis.set(key, `v${'['.repeat(50_000)}`),
  'a hash': (key) => put(key, () => redis.hset(key, 'ada', 'v', 'ben', '', 'cyd', 't', 'pam', 'v2222')),
  'a list': (key) => put(key, () => redis.rpush(key, 'a')),
  'a set with a stranger last': (key) => put(key, () => redis.zadd(key, -5, '7', 3, 'r', 9e15, 'q')),
  'a set that is complete above everything': (key) => put(key, () => redis.zadd(key, -5, '5', 'inf', 'r')),
  'a set that is complete below nothing': (key) =>
    put(key, () => redis.zadd(key, -9e15, '9000000000000000', -8e15, 'r')),
};
/** Whom or what every read of rita's page asks for; what is of somebody whom she has muted may lie there damaged, and does no harm. */
async function keyOf(kind: string): Promise<string> {
  const of: Readonly<Record<string, string>> = { al: 'pam', am: 'ada', ap: 'ada' };
  const isOfPost = ['pm', 'pb', 'pc'].includes(kind);
  const id = isOfPost ? cast.post('b3').postId : (of[kind] ?? 'rita');
  const found = await redis.keys(`${kind}:{*}:${tenant.id}:${id}*`);
  const key = found.find((each) => kind !== 'tl' || each.endsWith(':rita'));
  if (key === undefined) throw new Error(`there is no ${kind}: to be damaged`);
  return key;
}

it.each(Object.keys(DAMAGES))('of every kind at once: %s', async (damage) => {
  for (const key of keys) await DAMAGES[damage]?.(key);
  const damaged = await Promise.all(keys.map((key) => redis.dump(key)));
  const { home } = await tenant.oracle('rita');
  expect(await wholeHome(tenant, 'rita')).toEqual(home);
  await cast.play('rita mutes ada');
  expect(await wholeHome(tenant, 'rita')).toEqual((await tenant.oracle('rita')).home);
  await cast.play('rita unmutes ada');
  expect(await wholeHome(tenant, 'rita')).toEqual(home);
  const left = await Promise.all(keys.map((key) => redis.dump(key)));
  expect(keys.filter((_, at) => left[at] !== null && left[at] === damaged[at])).toEqual([]);
});
