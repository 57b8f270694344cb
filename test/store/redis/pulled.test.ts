/** Owns the laws of lists of pulled authors on one Redis server. */
import { afterAll, beforeAll, describe, inject } from 'vitest';
import { type CacheUnderTest, openCache } from './cache-under-test.ts';
import { pulledLaws } from './pulled-laws.ts';

let under: CacheUnderTest;
beforeAll(async () => {
  under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
});
afterAll(() => under.close());

describe('on one server', () => pulledLaws(() => under));
