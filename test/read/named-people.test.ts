/** Owns what holds of the memory of whom posts name: it is of one tenant, never more than it may be, and keeps those longest who are asked for. */
import { expect, it } from 'vitest';
import { createNamedPeople } from '../../src/read/named-people.ts';
import { postIdFrom } from '../../src/timeline/ids.ts';
import type { PostMeta } from '../../src/timeline/post.ts';
import { postMeta } from '../harness/post-meta.ts';
import { newTenant, user } from '../store/redis/cache-under-test.ts';

const MAX = 10;
const metaOf = (number: number, more: Partial<PostMeta> = {}): PostMeta =>
  postMeta({ postId: postIdFrom(number), author: user(`author-${number}`), ...more });

it('tells of a post whom it names, and nothing that may change; to its tenant alone', () => {
  const named = createNamedPeople(MAX);
  const [tenant, other] = [newTenant(), newTenant()];
  const replyTo = { postId: postIdFrom(7), author: user('ben'), names: [user('cyd')] };
  named.learn(tenant, metaOf(1, { replyTo }));
  expect(named.of(tenant, postIdFrom(1))).toEqual({ author: 'author-1', replyTo });
  expect(named.of(other, postIdFrom(1))).toBeUndefined();
  named.learn(other, metaOf(1, { author: user('eve') }));
  expect([tenant, other].map((of) => named.of(of, postIdFrom(1))?.author)).toEqual(['author-1', 'eve']);
});

it('holds no more than twice its bound, over all tenants, and what is asked for now and then longest', () => {
  const named = createNamedPeople(MAX);
  const tenants = [newTenant(), newTenant(), newTenant()];
  const known = (upTo: number) =>
    tenants.flatMap((tenant) =>
      Array.from({ length: upTo }, (_, at) => at + 1).filter((number) => named.of(tenant, postIdFrom(number))),
    );
  const [first = newTenant()] = tenants;
  named.learn(first, metaOf(1));
  for (let number = 2; number <= 200; number += 1) {
    named.learn(tenants[number % 3] ?? first, metaOf(number));
    // Learnt again, it is still one.
    named.learn(tenants[number % 3] ?? first, metaOf(number));
    if (number % 5 === 0) expect(named.of(first, postIdFrom(1))?.author).toBe('author-1');
  }
  const left = known(200);
  expect(left.length).toBeLessThanOrEqual(2 * MAX);
  expect(left.length).toBeGreaterThanOrEqual(MAX);
  expect(left).toContain(200);
});
