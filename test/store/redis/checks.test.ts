/** Owns the checks of the start: what a cache must not do is refused, what costs memory is said with both figures. */
import { afterEach, describe, expect, it } from 'vitest';
import { CacheRefused, checkCache } from '../../../src/store/redis/checks.ts';
import { type CacheUnderTest, openCache, soon } from './cache-under-test.ts';
import { type OwnRedis, startOwnRedis } from './own-redis.ts';

const SIZES = { cap: 800, stride: 64 };
let own: OwnRedis | undefined;
let under: CacheUnderTest | undefined;

afterEach(async () => {
  await under?.close();
  await own?.stop();
  under = undefined;
  own = undefined;
});

async function check(args: readonly string[], credentials = ''): Promise<readonly string[]> {
  own = await startOwnRedis(...args);
  under = await openCache({ urls: [own.server.url.replace('//', `//${credentials}`)], cluster: false });
  return checkCache(under.cache, SIZES, soon());
}

describe('a cache Redis', () => {
  it('as we start it passes', async () => expect(await check([])).toEqual([]));

  it.each([
    { entries: 864, warned: true },
    { entries: 865, warned: false },
  ])('with listpacks of $entries entries gets a warning: $warned', async ({ entries, warned }) => {
    const warnings = await check(['--zset-max-listpack-entries', String(entries)]);
    expect(warnings).toEqual(
      warned ? [expect.stringMatching(/zset-max-listpack-entries 864, timelines need 865/)] : [],
    );
  });

  it.each([
    { what: 'a snapshot', args: ['--save', '60 1'], says: 'save "60 1"' },
    { what: 'an append-only file', args: ['--appendonly', 'yes'], says: 'append-only' },
  ])('that keeps $what is refused', async ({ args, says }) => {
    const checked = check(args);
    await expect(checked).rejects.toBeInstanceOf(CacheRefused);
    await expect(checked).rejects.toThrow(says);
  });

  it('that tells nobody its settings gets a warning for each', async () => {
    const warnings = await check(['--rename-command', 'CONFIG', '']);
    expect(warnings).toHaveLength(3);
    expect(warnings.join()).toMatch(/save.*appendonly.*zset-max-listpack-entries/);
  });

  it('that does not tell this user its settings gets a warning for each', async () => {
    const warnings = await check(['--user', 'app', 'on', '>secret', '~*', '+@all', '-config'], 'app:secret@');
    expect(warnings).toHaveLength(3);
  });

  it('that does not answer is not taken for one that refuses to tell', async () => {
    await check([]);
    await under?.cache.close();
    await expect(checkCache((under as CacheUnderTest).cache, SIZES, soon())).rejects.toEqual(
      expect.objectContaining({ reason: 'CACHE_UNAVAILABLE' }),
    );
  });
});
