/** Owns the laws of lease fill on one Redis server. */
import { afterAll, beforeAll, describe, inject } from 'vitest';
import { type CacheUnderTest, openCache } from './cache-under-test.ts';
import { factLaws } from './fact-laws.ts';

let under: CacheUnderTest;
beforeAll(async () => {
  under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
});
afterAll(() => under.close());

describe('on one server', () => factLaws(() => under));
